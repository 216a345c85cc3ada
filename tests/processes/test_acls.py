"""ACLs on a real broker: set by clients, asked of each request, kept over a start, and never left
out in silence."""

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from shmbroker.observe.attach import attach
from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    GROUP_AUTHORIZATION_FAILED,
    NONE,
    TOPIC_AUTHORIZATION_FAILED,
)
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

JUDGED = ("--set", f"authorizer.class.name={STANDARD_AUTHORIZER}")
OPEN = ("--set", "super.users=User:ANONYMOUS")
ANY = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def acl(*arguments: str, address: str) -> str:
    command = [sys.executable, "-m", "shmbroker", "acl", *arguments, "-b", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refusal(*arguments: str, address: str) -> tuple[int, str]:
    """Exit status and stderr of a command."""
    command = [sys.executable, "-m", "shmbroker", *arguments, "-b", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A directory with topics `mine` and `hers`, and rights on the first."""
    with Broker(*JUDGED, *OPEN, data=tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            for topic in ("mine", "hers"):
                client.create_topic(topic)
                assert client.produce(topic, batch_now(b"first"))["error_code"] == NONE
        everybody = ("--allow", "User:ANONYMOUS", "--host", "127.0.0.1")
        acl("add", *everybody, "--operation", "read", "--operation", "write", "--topic", "mine",
            address=broker.address)  # fmt: skip
        acl("add", *everybody, "--operation", "read", "--group", "my", "--prefixed",
            address=broker.address)  # fmt: skip
        assert broker.stop() == 0
    return tmp_path / "data"


def test_requests_are_judged_after_a_start_without_super_users(data: Path) -> None:
    with Broker(*JUDGED, data=data) as broker, RawClient(broker.address) as client:
        assert client.produce("mine", batch_now(b"second"))["error_code"] == NONE
        assert client.produce("hers", batch_now(b"no"))["error_code"] == TOPIC_AUTHORIZATION_FAILED
        assert client.fetch("mine", 0)["error_code"] == NONE
        assert client.fetch("hers", 0)["error_code"] == TOPIC_AUTHORIZATION_FAILED
        listed = client.ask("Metadata", 12, {"topics": None})["topics"]
        assert [topic["name"] for topic in listed] == ["mine"]
        for group, error in (("my-1", NONE), ("other", GROUP_AUTHORIZATION_FAILED)):
            body = {"groups": [{"group_id": group, "topics": None}]}
            (row,) = client.ask("OffsetFetch", 8, body)["groups"]
            is_refused = row["error_code"] == GROUP_AUTHORIZATION_FAILED
            assert is_refused == (error != NONE)
        refused = client.ask("DescribeAcls", 3, ANY)
        assert refused["error_code"] == CLUSTER_AUTHORIZATION_FAILED
        status, told = refusal("acl", "list", address=broker.address)
        assert status == 1
        assert "ACLs: not authorized for the cluster; `shmbroker acl add" in told
        assert "--operation describe --cluster` by a super user gives the right" in told
        status, told = refusal("user", "list", address=broker.address)
        assert status == 1
        assert "users: not authorized for the cluster; `shmbroker acl add" in told
        remove = ("user", "remove", "somebody", "--mechanism", "scram-sha-256")
        assert refusal(*remove, address=broker.address)[0] == 1
        status, told = refusal("status", address=broker.address)
        assert (status, told) == (0, "")  # what the broker does not tell is read from its memory


def test_a_right_that_is_taken_back_is_gone(data: Path) -> None:
    with Broker(*JUDGED, *OPEN, data=data) as broker:
        with RawClient(broker.address) as admin:
            filters = [ANY | {"resource_type_filter": 3}]
            answer = admin.ask("DeleteAcls", 3, {"filters": filters})
            (found,) = answer["filter_results"]
            assert [row["resource_name"] for row in found["matching_acls"]] == ["my"]
            resources = admin.ask("DescribeAcls", 3, ANY)["resources"]
            assert [row["resource_name"] for row in resources] == ["mine"]
        assert broker.stop() == 0
    with Broker(*JUDGED, data=data) as broker, RawClient(broker.address) as client:
        body = {"groups": [{"group_id": "my-1", "topics": None}]}
        (row,) = client.ask("OffsetFetch", 8, body)["groups"]
        assert row["error_code"] == GROUP_AUTHORIZATION_FAILED


def test_whoever_is_killed_rights_stay(data: Path) -> None:
    with Broker(*JUDGED, data=data) as broker:
        for title in ("network-worker-1", "controller-1"):
            before = broker.children()[title]
            os.kill(before, 9)
            wait_until(
                lambda title=title, before=before: broker.children().get(title, before) != before,
                title,
            )
        with RawClient(broker.address, 30) as client:
            assert client.fetch("hers", 0)["error_code"] == TOPIC_AUTHORIZATION_FAILED
            assert client.fetch("mine", 0)["error_code"] == NONE


def test_no_start_opens_what_acls_close_unless_it_is_said(data: Path) -> None:
    command = [sys.executable, "-m", "shmbroker", "serve", "--data", str(data), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "holds 3 ACLs, but authorizer.class.name is not set" in done.stderr
    unjudged = Broker("--set", "authorizer.class.name=", data=data)
    with unjudged as broker, RawClient(broker.address) as client:
        assert client.fetch("hers", 0)["error_code"] == NONE


def test_who_looks_into_the_family_sees_groups_that_no_client_may_describe(tmp_path: Path) -> None:
    groups = [f"group-{number}" for number in range(6)]
    two = ("--io-workers", "2")
    with Broker(*JUDGED, *OPEN, *two, data=tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            client.create_topic("read")
            asked = {"key_type": 0, "coordinator_keys": groups}

            def coordinators() -> dict[str, int]:
                rows = client.ask("FindCoordinator", 4, asked)["coordinators"]
                return {row["key"]: row["port"] for row in rows if not row["error_code"]}

            wait_until(lambda: len(coordinators()) == len(groups), "coordinators")
            places = coordinators()
        assert len(set(places.values())) == 2, "both brokers have groups"
        for group, port in places.items():
            partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
            body = {
                "group_id": group,
                "topics": [{"name": "read", "partitions": [partition]}],
            }
            with RawClient(f"127.0.0.1:{port}") as client:
                wait_until(
                    lambda client=client, body=body: (
                        not client.ask("OffsetCommit", 8, body)["topics"][0]["partitions"][0][
                            "error_code"
                        ]
                    ),
                    "an offset is kept",
                )
        assert broker.stop() == 0
    with Broker(*JUDGED, *two, data=tmp_path / "data") as broker:
        with RawClient(broker.address) as client:
            assert client.ask("ListGroups", 4, {})["groups"] == []
        with closing(attach(broker.pid)) as seen:
            asker = seen.observer.groups

            def are_seen() -> bool:
                asker.ask()
                return sorted(asker.groups) == groups

            wait_until(are_seen, "all groups")
            assert len({told.coordinator for told in asker.groups.values()}) == 2
