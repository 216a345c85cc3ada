"""The audit log of a broker whose clients authenticate: who was denied what, and who has changed
what, also where the controller decides."""

import json
from typing import Any

from shmbroker.settings.table import STANDARD_AUTHORIZER
from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import NONE, TOPIC_AUTHORIZATION_FAILED
from tests.support.acknowledged_load import batch_now
from tests.support.scram_client import ScramClient
from tests.support.waiting import wait_until

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = {
    "listeners": "DOOR://127.0.0.1:{port1}",
    "listener.security.protocol.map": "DOOR:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.door.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} user_admin="admin-secret" user_alice="alice-secret";'
    ),
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
}


def said(broker: Broker) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in broker.lines if line.startswith("{")]
    return [row for row in rows if row["logger"] == "shmbroker.audit"]


def test_lines_say_who_did_what() -> None:
    words = [word for pair in SETTINGS.items() for word in ("--set", "=".join(pair))]
    with Broker("--log-format", "json", *words) as broker:
        address = f"127.0.0.1:{broker.port_of_listener(0)}"
        with (
            ScramClient(address).plain("admin", "admin-secret") as admin,
            ScramClient(address).plain("alice", "alice-secret") as alice,
        ):
            admin.create_topic("orders")
            assert alice.produce("orders", batch_now(b"x"))["error_code"] == (
                TOPIC_AUTHORIZATION_FAILED
            )
            deletion = {"topics": [{"name": "orders"}], "timeout_ms": 10_000}
            [row] = alice.ask("DeleteTopics", 6, deletion)["responses"]
            assert row["error_code"] == TOPIC_AUTHORIZATION_FAILED
            [row] = admin.ask("DeleteTopics", 6, deletion)["responses"]
            assert row["error_code"] == NONE
            client = "{}:{}".format(*alice.socket.getsockname())
        wait_until(lambda: len(said(broker)) >= 5, "the lines")
        assert "secret" not in broker.log
        keys = ("principal", "api", "operation", "resource", "outcome")
        assert [tuple(row[key] for key in keys) for row in said(broker)] == [
            ("User:admin", "CreateTopics", "create", "topic orders", "done"),
            ("User:alice", "Produce", "WRITE", "topic orders", "denied"),
            ("User:alice", "DeleteTopics", "DELETE", "topic orders", "denied"),
            ("User:alice", "DeleteTopics", "delete", "topic orders", "TOPIC_AUTHORIZATION_FAILED"),
            ("User:admin", "DeleteTopics", "delete", "topic orders", "done"),
        ]
        assert {row["listener"] for row in said(broker)} == {"listener DOOR"}
        assert said(broker)[1]["client"] == client
        assert said(broker)[1]["ts"].endswith("Z")
