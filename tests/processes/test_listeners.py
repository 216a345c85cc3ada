"""Several listeners at once: where each listens, and what its clients are told."""

import os
import socket
import stat
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from shmbroker.testing.broker import Broker
from shmbroker.wire import codec
from shmbroker.wire.api_keys import METADATA
from shmbroker.wire.frame import request_frame
from tests.support.raw_client import RawClient


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("listeners")


@pytest.fixture(scope="module")
def broker(place: Path) -> Iterator[Broker]:
    flags = {
        "listeners": f"LOCAL://127.0.0.1:{{port1}},WIDE://:{{port2}},SOCK://{place}/k.sock",
        "advertised.listeners": "WIDE://kafka.example:29092",
        "listener.security.protocol.map": "LOCAL:PLAINTEXT,WIDE:PLAINTEXT,SOCK:UNIX",
        "listener.name.sock.shmbroker.unix.mode": "0600",
    }
    words = [word for pair in flags.items() for word in ("--set", "=".join(pair))]
    with Broker("--io-workers", "2", *words) as broker:
        yield broker


def told(address: str) -> dict[int, tuple[str, int]]:
    with RawClient(address) as client:
        return rows(client.ask("Metadata", 1, {"topics": []}))


def rows(answer: dict[str, Any]) -> dict[int, tuple[str, int]]:
    return {row["node_id"]: (row["host"], row["port"]) for row in answer["brokers"]}


def test_who_dials_the_address_is_told_it(broker: Broker) -> None:
    port = broker.port_of_listener(0)
    assert told(f"127.0.0.1:{port}") == {1: ("127.0.0.1", port), 2: ("127.0.0.1", port + 1)}


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_who_comes_by_another_listener_is_told_the_advertised_one(
    broker: Broker, host: str
) -> None:
    port = broker.port_of_listener(1)
    expected = {1: ("kafka.example", 29092), 2: ("kafka.example", 29093)}
    assert told(f"{host}:{port}") == told(f"{host}:{port + 1}") == expected


def test_a_unix_socket_is_a_listener(broker: Broker, place: Path) -> None:
    path = place / "k.sock"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    body = codec.encode("MetadataRequest", 1, {"topics": []})
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        client.sendall(request_frame(METADATA, 1, 7, "c", body))
        size, _ = struct.unpack(">ii", client.recv(8, socket.MSG_WAITALL))
        answer = codec.decode_all("MetadataResponse", 1, client.recv(size - 4, socket.MSG_WAITALL))
    assert rows(answer) == {1: (str(path), 0), 2: (f"{path}-2", 0)}


def test_each_broker_says_where_it_listens(broker: Broker) -> None:
    port = broker.port_of_listener(0)
    with RawClient(f"127.0.0.1:{port + 1}") as client:
        asked = {"resource_type": 4, "resource_name": "2", "configuration_keys": None}
        answer = client.ask("DescribeConfigs", 1, {"resources": [asked], "include_synonyms": True})
    found = {row["name"]: row for row in answer["results"][0]["configs"]}
    wide = broker.port_of_listener(1) + 1
    assert found["listeners"]["value"].split(",")[:2] == [
        f"LOCAL://127.0.0.1:{port + 1}",
        f"WIDE://[::]:{wide}",
    ]
    assert "WIDE://kafka.example:29093" in found["advertised.listeners"]["value"]
    assert found["listener.name.sock.shmbroker.unix.mode"]["value"] == "0600"
    secret = found["ssl.keystore.key"]
    assert secret["is_sensitive"] and secret["value"] is None


def test_a_listener_that_leaves_the_host_is_warned_of(broker: Broker) -> None:
    assert "listener WIDE leaves this host and asks nobody who they are" in broker.log
    assert "listener LOCAL" not in broker.log


def test_clients_of_a_driver_come_in_by_ipv6(broker: Broker) -> None:
    address = f"[::1]:{broker.port_of_listener(1)}"
    found = AdminClient({"bootstrap.servers": address}).list_topics(timeout=20)
    assert {each.host for each in found.brokers.values()} == {"kafka.example"}


def test_what_is_left_of_a_socket_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "k.sock"
    flags = ("--set", f"listeners=UNIX://{path}")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with Broker(*flags):
        assert path.is_socket()
        with pytest.raises(RuntimeError, match="Somebody listens on"):
            Broker(*flags)
    assert not path.exists(), "a clean stop removes it"
    path.write_text("mine")
    with pytest.raises(RuntimeError, match="is no socket, so it is left alone"):
        Broker(*flags)
