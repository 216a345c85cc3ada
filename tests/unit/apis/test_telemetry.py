"""Telemetry without a receiver: the ids are Kafka's, metrics are judged and dropped."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.gateway import get_telemetry_subscriptions, push_telemetry
from shmbroker.apis.gateway.get_telemetry_subscriptions import (
    TELEMETRY_BYTES_MAX,
    subscription_id_of,
)
from shmbroker.ids import ZERO_UUID

CLIENT = bytes.fromhex("d4eb09624f6a4f03910fe205f393cdd9")


def push(**fields: Any) -> int:
    body = {
        "client_instance_id": CLIENT,
        "subscription_id": subscription_id_of(CLIENT),
        "terminating": False,
        "compression_type": 0,
        "metrics": b"",
    }
    answer = push_telemetry.answer(SimpleNamespace(), SimpleNamespace(), body | fields)
    return answer["error_code"]


@pytest.mark.parametrize(
    ("client", "subscription"), [(CLIENT, 769_274_467), (b"x" * 16, -725_132_322)]
)
def test_subscription_id_is_kafkas(client: bytes, subscription: int) -> None:
    assert subscription_id_of(client) == subscription


def test_client_without_an_id_gets_one_of_its_own() -> None:
    answers = [
        get_telemetry_subscriptions.answer(None, None, {"client_instance_id": ZERO_UUID})
        for _ in range(2)
    ]
    first, second = (answer["client_instance_id"] for answer in answers)
    assert len({first, second, ZERO_UUID}) == 3
    assert answers[0]["subscription_id"] == subscription_id_of(first)
    assert answers[0]["requested_metrics"] == []


def test_known_client_keeps_its_id() -> None:
    answer = get_telemetry_subscriptions.answer(None, None, {"client_instance_id": CLIENT})
    assert answer["client_instance_id"] == CLIENT


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({}, 0),
        ({"compression_type": 4}, 0),
        ({"client_instance_id": ZERO_UUID}, 42),
        ({"subscription_id": 1}, 117),
        ({"compression_type": 5}, 76),
        ({"metrics": bytes(TELEMETRY_BYTES_MAX + 1)}, 118),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else str(value),
)
def test_push(fields: dict[str, Any], code: int) -> None:
    assert push(**fields) == code
