"""DescribeClientQuotas as Kafka answers it where the conformance cases do not look: at its text."""

from types import SimpleNamespace
from typing import Any

import pytest

from shmbroker.apis.gateway.describe_client_quotas import answer
from shmbroker.metadata.security_image import SecurityImage


@pytest.mark.parametrize(
    ("kind", "error_code", "message"),
    [("user", 0, ""), ("nope", 35, "Unsupported entity type nope")],
)
def test_text_is_kafkas(kind: str, error_code: int, message: str) -> None:
    gateway: Any = SimpleNamespace(image=SimpleNamespace(security=SecurityImage()))
    component = {"entity_type": kind, "match_type": 2, "match": None}
    request: Any = None
    told = answer(gateway, request, {"components": [component], "strict": False})
    assert (told["error_code"], told["error_message"]) == (error_code, message)
