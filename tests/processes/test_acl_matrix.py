"""Every API asked by every principal: answered as Apache Kafka does with its authorizer on.

The expectations are in acl_expectations.jsonl, the reasons for what differs in docs/apis.toml.
"""

from typing import Any

from shmbroker.apis import table
from shmbroker.security.access.needs import LEFT_OUT, NEEDS
from shmbroker.wire import api_keys
from tests.processes.acl_expectations import DENIED, agrees, ask_ours, lines, load, reason

KAFKA, HERE = load()
SERVED = {api_keys.name_of(row["api_key"]) for row in table.advertised()}


def test_each_principal_gets_what_kafka_gives_it() -> None:
    ours = ask_ours(SERVED)
    expected = {key: answer for key, answer in (KAFKA | HERE).items() if key[0] in SERVED}
    assert expected.keys() == ours.keys()
    wrong = {key for key, answer in expected.items() if not agrees(answer, ours[key])}
    shown = [
        *lines({key: expected[key] for key in expected if key in wrong}, "answer"),
        *lines({key: ours[key] for key in ours if key in wrong}, "here"),
    ]
    assert not wrong, f"{len(wrong)} answers, of {len(ours)}:\n" + "\n".join(shown[:20])


def test_what_differs_has_a_reason() -> None:
    assert [key for key in HERE if reason(key) is None] == []


def test_what_an_api_is_said_to_need_is_what_it_was_seen_to_refuse() -> None:
    seen: dict[str, set[int]] = {}
    for (api, *_), answer in KAFKA.items():
        seen.setdefault(api, set()).update(denials(answer))
    said = {
        api_keys.name_of(key): {need.error for need in needs} - {LEFT_OUT}
        for key, needs in NEEDS.items()
    }
    assert {api: said[api] for api in seen} == seen


def denials(answer: Any) -> set[int]:
    """The errors of authorization in it."""
    if isinstance(answer, list):
        return {error for row in answer for error in denials(row)}
    if not isinstance(answer, dict):
        return set()
    here = {answer[key] for key in answer if key.endswith("error_code")} & DENIED
    return here | denials([*answer.values()])
