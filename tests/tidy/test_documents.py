"""Tests that documents name are there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/\S+\.py)::(\w+)`")


def test_tests_that_documents_name_are_there() -> None:
    named = [
        (path.name, file, name)
        for path in sorted((ROOT / "docs").glob("*.md"))
        for file, name in NAMED.findall(path.read_text(encoding="utf-8"))
    ]
    assert named
    for document, file, name in named:
        assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), (document, file, name)
