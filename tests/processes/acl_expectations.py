"""What is expected of the matrix of APIs and principals: recorded from Apache Kafka 4.2.1.

acl_expectations.jsonl has a row for each answer, with all who got it and all versions that have it:

    {"api": "Fetch", "case": "all topics", "who": ["dave"], "versions": "4-12", "answer": {…}}

"here" instead of "answer" is what we say where we differ; docs/apis.toml has the reason.

Record anew, with a Kafka of one broker that has the settings which `settings PORT` prints and
nothing else on it; PORT and the one above are its listeners:

    python -m tests.processes.acl_expectations settings PORT
    KAFKA_ORACLE_ACLS=PORT python -m tests.processes.acl_expectations
"""

import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shmbroker.apis import table
from shmbroker.testing.broker import Broker, free_ports
from shmbroker.wire import api_keys
from tests.processes.acl_cases import cases
from tests.processes.acl_side import HERE, AclSide, settings, settings_of_kafka

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_suffix(".jsonl")

Key = tuple[str, str, str, int]
"""API, case, principal, version."""
Answers = dict[Key, Any]

DIFFERENT = {
    like: row["why"]
    for row in tomllib.loads((ROOT / "docs" / "apis.toml").read_text(encoding="utf-8"))["different"]
    for like in row.get("rights", ())
}
"""Patterns of "API / case" that we answer differently on purpose, and why."""

DENIED = frozenset((29, 30, 31, 53, 65))
"""Errors of authorization: their texts are compared."""


def reason(key: Key) -> str | None:
    """Why an answer is different."""
    name = f"{key[0]} / {key[1]}"
    return next((why for like, why in DIFFERENT.items() if fnmatchcase(name, like)), None)


def run(side: AclSide, served: Collection[str]) -> Answers:
    """All answers of a broker to cases of APIs that are served."""
    found: Answers = {}
    side.set_up()
    for case in cases(side):
        if case.api not in served:
            continue
        for who, version in case.asked():
            if case.before is not None:
                case.before(side)
            key = (case.api, case.name, who, version)
            assert key not in found, f"{key} is there twice"
            try:
                body = case.body(side) if callable(case.body) else case.body
                found[key] = side.asked_by(who, case.api, version, body)
            except Exception as error:
                raise AssertionError(f"asked {key}") from error
    return found


def agrees(expected: Any, got: Any) -> bool:
    """Whether the answers are the same, but for texts of errors that do not deny a right."""
    if isinstance(expected, dict) and isinstance(got, dict):
        is_denied = bool({expected.get("error_code"), expected.get("error")} & DENIED)
        return all(
            agrees(expected.get(key), got.get(key))
            or (key.endswith("error_message") and not is_denied)
            for key in expected.keys() | got.keys()
        )
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(agrees, expected, got))
    return bool(expected == got)


# ── the file ────────────────────────────────────────────────────────────────────────────────────


def load() -> tuple[Answers, Answers]:
    """(Kafka's answers, ours where they differ)."""
    kafka: Answers = {}
    here: Answers = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        first, _, last = row["versions"].partition("-")
        for who in row["who"]:
            for version in range(int(first), int(last or first) + 1):
                key = (row["api"], row["case"], who, version)
                if "here" in row:
                    here[key] = row["here"]
                else:
                    kafka[key] = row["answer"]
    return kafka, here


def lines(answers: Answers, name: str) -> Iterator[str]:
    """Rows of answers: one for all who got the same in a run of versions."""
    spreads: dict[tuple[str, str, str], list[tuple[int, str]]] = {}
    for (api, case, who, version), answer in answers.items():
        spreads.setdefault((api, case, who), []).append((version, json.dumps(answer)))
    rows: dict[tuple[str, str, str, str], list[str]] = {}
    for (api, case, who), told in spreads.items():
        runs: list[list[Any]] = []
        for version, text in told:
            if runs and runs[-1][2] == text and runs[-1][1] + 1 == version:
                runs[-1][1] = version
            else:
                runs.append([version, version, text])
        for first, last, text in runs:
            spread = str(first) if first == last else f"{first}-{last}"
            rows.setdefault((api, case, spread, text), []).append(who)
    for (api, case, spread, text), who in rows.items():
        row = {"api": api, "case": case, "who": who, "versions": spread, name: json.loads(text)}
        yield json.dumps(row, ensure_ascii=False)


def differences(kafka: Answers, ours: Answers) -> Answers:
    """Ours where they are not Kafka's."""
    return {key: ours[key] for key in ours if not agrees(kafka[key], ours[key])}


@contextmanager
def our_side() -> Iterator[AclSide]:
    """A broker of ours, with nothing on it."""
    port = free_ports(2)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "server.properties"
        said = settings(port, port + 1)
        listeners = ("--set", f"listeners={said.pop('listeners')}")
        rows = (f"{key}={value}\n" for key, value in said.items())
        file.write_text("".join(rows), encoding="utf-8")
        with Broker("--config", str(file), *listeners, data=Path(directory) / "data", port=port):
            side = AclSide(f"{HERE}:{port}", f"{HERE}:{port + 1}")
            try:
                yield side
            finally:
                side.close()


def ask_ours(served: Collection[str]) -> Answers:
    """All answers of a broker of ours."""
    with our_side() as side:
        return run(side, served)


def record(port: int) -> int:
    """Write the file; how many answers differ without a reason."""
    everything = {row[0] for row in api_keys.TABLE.values()}
    served = {api_keys.name_of(row["api_key"]) for row in table.advertised()}
    kafka = run(AclSide(f"{HERE}:{port}", f"{HERE}:{port + 1}"), everything)
    ours = ask_ours(served)
    here = differences(kafka, ours)
    unexplained = {key: answer for key, answer in here.items() if reason(key) is None}
    text = "\n".join((*lines(kafka, "answer"), *lines(here, "here")))
    FILE.write_text(text + "\n", encoding="utf-8")
    print(f"{len(kafka)} answers, {len(here)} differ, {len(unexplained)} without a reason")
    for wanted, got in zip(
        lines({key: kafka[key] for key in unexplained}, "answer"),
        lines(unexplained, "here"),
        strict=False,
    ):
        print(wanted, got, sep="\n")
    return len(unexplained)


if __name__ == "__main__":
    if sys.argv[1:2] == ["settings"]:
        port = int(sys.argv[2])
        for key, value in settings_of_kafka(port, port + 1, port + 1001).items():
            print(f"{key}={value}")
    else:
        sys.exit(record(int(os.environ["KAFKA_ORACLE_ACLS"])) > 0)
