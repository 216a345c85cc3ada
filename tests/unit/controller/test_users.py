"""AlterUserScramCredentials as it is decided; the rows that Apache Kafka answers are in
tests/processes/wire_expectations.txt."""

import hashlib
import hmac
from typing import Any

from shmbroker.controller.decisions.users import alter_users
from shmbroker.metadata.image import MetadataImage
from shmbroker.metadata.security_image import ScramCredential
from shmbroker.wire.error_codes import NONE, UNSUPPORTED_VERSION


def image(level: int = 29, **users: ScramCredential) -> MetadataImage:
    made = MetadataImage("cluster")
    made.features = {"metadata.version": level}
    made.security.scram = {(user, 1): credential for user, credential in users.items()}
    return made


def set_(user: str, **changes: Any) -> dict[str, Any]:
    row = {"name": user, "mechanism": 1, "iterations": 4096, "salt": b"salt"}
    return row | {"salted_password": b"salted"} | changes


def decided(of: MetadataImage, *upsertions: dict[str, Any], deletions: tuple[str, ...] = ()):
    removed = [{"name": user, "mechanism": 1} for user in deletions]
    return alter_users({"deletions": removed, "upsertions": list(upsertions)}, of)


def test_keys_are_kept_and_no_salted_password() -> None:
    records, answer = decided(image(), set_("alice"))
    client_key = hmac.digest(b"salted", b"Client Key", "sha256")
    assert records == [
        (
            "UserScramCredentialRecord",
            0,
            {
                "name": "alice",
                "mechanism": 1,
                "salt": b"salt",
                "stored_key": hashlib.sha256(client_key).digest(),
                "server_key": hmac.digest(b"salted", b"Server Key", "sha256"),
                "iterations": 4096,
            },
        )
    ]
    assert answer["results"] == [{"user": "alice", "error_code": NONE, "error_message": None}]


def test_who_is_removed_must_be_there() -> None:
    there = image(alice=ScramCredential(b"", b"", b"", 4096))
    records, answer = decided(there, deletions=("alice", "bob"))
    assert records == [("RemoveUserScramCredentialRecord", 0, {"name": "alice", "mechanism": 1})]
    assert [row["user"] for row in answer["results"]] == ["alice", "bob"]


def test_one_that_is_refused_leaves_the_others() -> None:
    records, answer = decided(image(), set_("alice"), set_("bob"), set_("bob"))
    assert [record[2]["name"] for record in records] == ["alice"]
    assert [bool(row["error_code"]) for row in answer["results"]] == [False, True]


def test_a_metadata_version_without_these_records() -> None:
    records, answer = decided(image(10), set_("alice"))
    assert records == []
    assert answer["results"][0]["error_code"] == UNSUPPORTED_VERSION


def test_users_are_a_part_of_a_snapshot() -> None:
    of = image(alice=ScramCredential(b"salt", b"stored", b"server", 8192))
    (record,) = of.security.records()
    assert record == (
        "UserScramCredentialRecord",
        0,
        {
            "name": "alice",
            "mechanism": 1,
            "salt": b"salt",
            "stored_key": b"stored",
            "server_key": b"server",
            "iterations": 8192,
        },
    )
