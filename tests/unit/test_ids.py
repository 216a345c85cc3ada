"""Ids as bytes and as text."""

import uuid

from shmbroker.ids import random_uuid, uuid_dashed, uuid_from_text, uuid_text


def test_random_uuids_are_of_version_4_and_written_as_everybody_writes_them() -> None:
    for _ in range(200):
        raw = random_uuid()
        known = uuid.UUID(bytes=raw)
        assert known.version == 4
        assert uuid_dashed(raw) == str(known)
        assert uuid_from_text(uuid_text(raw)) == raw
        assert not uuid_text(raw).startswith("-")
