"""What is expected of the wire cases: recorded from Apache Kafka 4.2.1, in wire_expectations.txt.

A block is one case; a line of it a range of versions and their answer, as JSON:

    [list_offsets / timestamp -3]
    1-6 {"topics": …}               both answer this
    7-11 {"topics": …}
    here 7-11 {"topics": …}         but we answer this; the reason is in docs/apis.toml

Error texts are not compared, only whether there is one; where Kafka has none, we may have one.

Record anew, with a Kafka whose topics may be littered:
    KAFKA_ORACLE=host:port python -m tests.processes.wire_expectations
"""

import json
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from shmbroker.testing.broker import Broker
from tests.processes import (  # noqa: F401  they add scenarios
    wire_cases_admin,
    wire_cases_configs,
    wire_cases_consumers,
    wire_cases_corners,
    wire_cases_fetch,
    wire_cases_groups,
    wire_cases_logs,
    wire_cases_metadata,
    wire_cases_produce,
    wire_cases_quotas,
    wire_cases_records,
    wire_cases_settings,
    wire_cases_topics,
    wire_cases_transactions,
)
from tests.processes.wire_cases import SCENARIOS
from tests.processes.wire_side import Side

ROOT = Path(__file__).resolve().parents[2]
FILE = Path(__file__).with_suffix(".txt")

FLAGS = (
    "--set", "num.partitions=1", "--set", "default.replication.factor=1",
    "--set", "min.insync.replicas=1", "--set", "group.initial.rebalance.delay.ms=0",
)  # fmt: skip
"""As the recorded Kafka has them in its file, so that settings have the same sources."""

DIFFERENT = {
    like: row["why"]
    for row in tomllib.loads((ROOT / "docs" / "apis.toml").read_text(encoding="utf-8"))["different"]
    for like in row.get("cases", ())
}
"""Patterns of cases that we answer differently on purpose, and why."""

Key = tuple[str, str]
Answers = dict[Any, Any]


def reason(key: Key) -> str | None:
    """Why a case is different."""
    name = f"{key[0]} / {key[1]}"
    return next((why for like, why in DIFFERENT.items() if fnmatchcase(name, like)), None)


def run(side: Side, scenario: str) -> dict[Key, Answers]:
    """All answers of a scenario: {(scenario, case): {version: answer}}."""
    found: dict[Key, Answers] = {}
    for case, version, answer in SCENARIOS[scenario](side):
        answers = found.setdefault((scenario, case), {})
        assert version not in answers, f"{scenario} / {case} v{version} is there twice"
        answers[version] = answer
    return found


def agrees(expected: Any, got: Any) -> bool:
    """Whether the answers are the same, but for error texts where none is expected."""
    if isinstance(expected, dict) and isinstance(got, dict):
        return all(
            agrees(expected.get(key, _ABSENT), got.get(key, _ABSENT))
            or (key.endswith("error_message") and not expected.get(key))
            for key in expected.keys() | got.keys()
        )
    if isinstance(expected, list) and isinstance(got, list):
        return len(expected) == len(got) and all(map(agrees, expected, got))
    return bool(expected == got)


_ABSENT = object()


def load() -> tuple[dict[Key, Answers], dict[Key, Answers]]:
    """(Kafka's answers, ours where they differ)."""
    kafka: dict[Key, Answers] = {}
    here: dict[Key, Answers] = {}
    key = ("", "")
    for line in FILE.read_text().splitlines():
        if line.startswith("["):
            scenario, _, case = line[1:-1].partition(" / ")
            key = scenario, case
        elif line:
            table = kafka
            if line.startswith("here "):
                table, line = here, line[5:]
            spread, _, answer = line.partition(" ")
            for version in _versions(spread):
                table.setdefault(key, {})[version] = json.loads(answer)
    return kafka, here


def _versions(spread: str) -> Iterable[Any]:
    if spread == "-":
        return ("-",)
    first, _, last = spread.partition("-")
    return range(int(first), int(last or first) + 1)


def _lines(answers: Answers, prefix: str = "") -> Iterator[str]:
    """One line for each run of versions with the same answer."""
    runs: list[list[Any]] = []
    for version, answer in answers.items():
        text = json.dumps(answer, sort_keys=True, ensure_ascii=False)
        if runs and runs[-1][2] == text and runs[-1][1] + 1 == version:
            runs[-1][1] = version
        else:
            runs.append([version, version, text])
    for first, last, text in runs:
        yield f"{prefix}{first if first == last else f'{first}-{last}'} {text}"


def record(kafka_address: str) -> int:
    """Write the file; the number of differences without a reason."""
    unexplained = 0
    used = set()
    lines = []
    with Broker(*FLAGS) as broker:
        for scenario in SCENARIOS:
            theirs, ours = run(Side(kafka_address), scenario), run(Side(broker.address), scenario)
            assert theirs.keys() == ours.keys(), theirs.keys() ^ ours.keys()
            for key, answers in theirs.items():
                lines += ["", f"[{key[0]} / {key[1]}]", *_lines(answers)]
                other = {
                    version: ours[key][version]
                    for version, answer in answers.items()
                    if not agrees(answer, ours[key][version])
                }
                lines += _lines(other, "here ")
                if other:
                    used.add(reason(key))
                    if reason(key) is None:
                        unexplained += 1
                        print(
                            f"{key[0]} / {key[1]}:",
                            *_lines(answers),
                            *_lines(other, "here "),
                            sep="\n",
                        )
    for why in set(DIFFERENT.values()) - used:
        print(f"no case is different because: {why}")
    FILE.write_text("\n".join(lines[1:]) + "\n")
    return unexplained


if __name__ == "__main__":
    sys.exit(record(os.environ["KAFKA_ORACLE"]) > 0)
