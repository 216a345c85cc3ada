"""A directory with delegation tokens goes to Apache Kafka and back: with the same key they open
what they opened before, and what one side ends is ended on the other.

KAFKA_ON_WITH DIR PORT KEY=VALUE …: runs an Apache Kafka on the directory of a node, at this port,
with further settings; KAFKA_OFF as in `test_controllers_home`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shmbroker.testing.broker import Broker
from shmbroker.wire.error_codes import NONE
from tests.processes.test_controllers_home import PORT, wait_for
from tests.processes.test_delegation_tokens import (
    KEY,
    SETTINGS,
    create,
    entered,
    entrance,
    expire,
    flags,
    is_refused,
    principal,
    renew,
    seen,
    user,
)
from tests.support.scram_client import DIGESTS
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.timeout(600),
    pytest.mark.skipif("KAFKA_ON_WITH" not in os.environ, reason="no Apache Kafka to go to"),
]
SECRET = "a key of tests"
SASL_PORT = PORT + 100
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


@contextmanager
def kafka(directory: Path) -> Iterator[str]:
    """Apache Kafka on the directory of a node; the address of its listener with SASL."""
    controller = PORT + 1001
    names = {
        "listeners": f"PLAINTEXT://127.0.0.1:{PORT},SASL://127.0.0.1:{SASL_PORT},"
        f"CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{PORT},SASL://127.0.0.1:{SASL_PORT}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL:SASL_PLAINTEXT,"
        "CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "super.users": "User:ANONYMOUS;User:admin",
        "delegation.token.secret.key": SECRET,
        **{
            f"listener.name.sasl.{mechanism.lower()}.sasl.jaas.config": SCRAM_MODULE
            for mechanism in DIGESTS
        },
    }
    settings = {name: text for name, text in SETTINGS.items() if "delay" not in name} | names
    words = [f"{name}={text}" for name, text in settings.items()]
    command = [*shlex.split(os.environ["KAFKA_ON_WITH"]), str(directory), str(PORT), *words]
    try:
        subprocess.run(command, check=True)
        wait_for(range(SASL_PORT, SASL_PORT + 1))
        yield f"127.0.0.1:{SASL_PORT}"
    finally:
        subprocess.run([*shlex.split(os.environ["KAFKA_OFF"]), str(PORT)], check=True)


def test_tokens_go_to_kafka_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_KEY", SECRET)
    data = tmp_path / "data"
    with Broker(*flags(SETTINGS | KEY), data=data) as broker:
        alice = user(entrance(broker), "alice")
        kept, ended = create(alice, renewers=[principal("bob")]), create(alice)
        assert broker.stop() == 0
    with kafka(data / "node-1") as address:
        alice = user(address, "alice")
        wait_until(lambda: seen(alice, kept, ended) == "0 1", "Kafka knows both")
        for mechanism in DIGESTS:
            with entered(address, kept, mechanism) as client:
                assert client.session_lifetime_ms > 0
        renewed = renew(user(address, "bob"), kept, 1_000_000)
        assert renewed["error_code"] == NONE
        assert expire(alice, ended)["error_code"] == NONE
        made = create(user(address, "bob"))
        assert made["error_code"] == NONE
    with Broker(*flags(SETTINGS | KEY), data=data) as broker:
        address = entrance(broker)
        admin = user(address, "admin")
        assert seen(admin, kept, ended, made) == "0 2"
        [row] = [
            row
            for row in admin.ask("DescribeDelegationToken", 3, {"owners": None})["tokens"]
            if row["token_id"] == kept["token_id"]
        ]
        assert row["expiry_timestamp"] == renewed["expiry_timestamp_ms"]
        for token in (kept, made):
            for mechanism in DIGESTS:
                entered(address, token, mechanism).close()
        assert is_refused(address, ended)
