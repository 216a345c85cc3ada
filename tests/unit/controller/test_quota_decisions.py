"""AlterClientQuotas as a decision: what is written, what is refused and what is left."""

from typing import Any

import pytest

from shmbroker.controller.decisions.quotas import alter_client_quotas
from shmbroker.metadata.draft import applied
from shmbroker.metadata.image import MetadataImage
from shmbroker.metadata.image_records import image_records
from shmbroker.metadata.security_image import SecurityImage
from shmbroker.wire.error_codes import INVALID_REQUEST, NONE

RATE = "producer_byte_rate"


def entry(entity: dict[str, str | None], *ops: tuple[str, float | None]) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in ops],
    }


def asked(*entries: dict[str, Any], is_trial: bool = False) -> dict[str, Any]:
    return {"entries": list(entries), "validate_only": is_trial}


def after(image: MetadataImage, records: list[Any]) -> MetadataImage:
    rows = [
        (offset, 1, name, version, message)
        for offset, (name, version, message) in enumerate(records, image.offset)
    ]
    return applied(image, rows, image.offset + len(rows), 1)[0]


def test_what_is_set_is_in_the_image_and_in_its_snapshot_until_it_is_removed() -> None:
    image = MetadataImage("c")
    pair = {"user": "alice", "client-id": None}
    first = asked(entry(pair, (RATE, 5.0), ("request_percentage", 0.5)), entry({"ip": None}))
    records, answer = alter_client_quotas(first, image.security)
    assert [row["error_code"] for row in answer["entries"]] == [NONE, NONE]
    image = after(image, records)
    entity = (("client-id", None), ("user", "alice"))
    assert image.security.quotas == {entity: {RATE: 5.0, "request_percentage": 0.5}}
    again = after(MetadataImage("c"), list(image_records(image, [])))
    assert again.security == image.security
    assert alter_client_quotas(first, image.security)[0] == [], "it is so already"
    gone = asked(entry(pair, (RATE, None), ("request_percentage", None), ("none", None)))
    image = after(image, alter_client_quotas(gone, image.security)[0])
    assert image.security.quotas == {}


def test_a_trial_writes_nothing() -> None:
    records, answer = alter_client_quotas(
        asked(entry({"user": "alice"}, (RATE, 5.0)), is_trial=True), SecurityImage()
    )
    assert (records, answer["entries"][0]["error_code"]) == ([], NONE)


def test_an_entity_with_one_bad_key_stands_not_at_all_and_others_do() -> None:
    records, answer = alter_client_quotas(
        asked(entry({"user": "a"}, (RATE, 5.0), ("no", 1.0)), entry({"user": "b"}, (RATE, 6.0))),
        SecurityImage(),
    )
    assert [row["error_code"] for row in answer["entries"]] == [INVALID_REQUEST, NONE]
    assert [record[2]["value"] for record in records] == [6.0]


def test_an_entity_that_is_named_twice_is_refused_but_its_first_row_is_done() -> None:
    records, answer = alter_client_quotas(
        asked(entry({"user": "a"}, (RATE, 5.0)), entry({"user": "a"}, (RATE, 6.0))),
        SecurityImage(),
    )
    assert [row["error_code"] for row in answer["entries"]] == [INVALID_REQUEST]
    assert [record[2]["value"] for record in records] == [5.0]
    one_key_twice = asked(entry({"user": "a"}, (RATE, 5.0), (RATE, 6.0)))
    assert alter_client_quotas(one_key_twice, SecurityImage())[0] == []


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ({}, RATE, 1.0),
        ({"group": "a"}, RATE, 1.0),
        ({"user": ""}, RATE, 1.0),
        ({"ip": "10.0.0.7", "user": "a"}, RATE, 1.0),
        ({"ip": "10.0.0.777"}, "connection_creation_rate", 1.0),
        ({"ip": "10.0.0.7"}, RATE, 1.0),
        ({"ip": "10.0.0.7"}, "connection_creation_rate", 3e9),
        ({"user": "a"}, "connection_creation_rate", 1.0),
        ({"user": "a"}, RATE, 0.0),
        ({"user": "a"}, RATE, -1.0),
        ({"user": "a"}, RATE, 1.5),
        ({"user": "a"}, RATE, 1e30),
        ({"user": "a"}, RATE, float("inf")),
    ],
)
def test_what_can_be_no_quota_is_refused(
    entity: dict[str, str | None], key: str, value: float
) -> None:
    records, answer = alter_client_quotas(asked(entry(entity, (key, value))), SecurityImage())
    (row,) = answer["entries"]
    assert (records, row["error_code"]) == ([], INVALID_REQUEST)
    assert row["error_message"]


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        ({"ip": "::1"}, "connection_creation_rate", 1.0),
        ({"ip": None}, "connection_creation_rate", 2147483647.0),
        ({"user": None, "client-id": "a"}, RATE, 1.0000001),
        ({"client-id": None}, "request_percentage", 1e-9),
        ({"user": "a"}, "request_percentage", float("inf")),
        ({"user": "a"}, RATE, float("nan")),
    ],
)
def test_what_kafka_takes_is_taken(entity: dict[str, str | None], key: str, value: float) -> None:
    records, answer = alter_client_quotas(asked(entry(entity, (key, value))), SecurityImage())
    assert (len(records), answer["entries"][0]["error_code"]) == (1, NONE)
