"""The documents: their links lead somewhere, and the tests and results that they name exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy.sources import ROOT, modules, name_of

DOCUMENTS = sorted(
    path for folder in (ROOT, ROOT / "perf", ROOT / "docs") for path in folder.glob("*.md")
)
DOCUMENTS += sorted((ROOT / "docs" / "decisions").glob("*.md"))
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([^"]+)">')
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"`(tests/\S+\.py)(?:::(\w+))?`")
IN_PYTHON = re.compile(r"(?<![\w*./{}<-])((?:\.\./)*[\w/-]+\.md)\b")
SOURCES = [
    ROOT / "setup.py",
    ROOT / "pyspark_shmbroker.py",
    *modules("shmbroker", "perf", "examples"),
    *sorted(path for path in (ROOT / "scripts").iterdir() if path.is_file()),
]
AT_THE_ROOT = {
    ".gitignore", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in",
    "Makefile", "README.md", "SECURITY.md", "pyproject.toml", "pyspark_shmbroker.py", "setup.py",
}  # fmt: skip
"""Files at the project's root; what else is there is a folder."""
RESULT = re.compile(r"`(perf/results/[\w-]+\.json)`")


def text_of(path: Path) -> str:
    """Without code, where brackets are no links."""
    return FENCED.sub("", path.read_text(encoding="utf-8"))


def anchors_of(path: Path) -> set[str]:
    """What a link may name behind its `#`: headings as GitHub makes names of them, and our own."""
    text = text_of(path)
    names = [
        re.sub(r"[^\w\- ]", "", re.sub(r"<[^>]*>", "", heading).lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(text)
    ]
    return {*names, *ANCHOR.findall(text)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_links_lead_somewhere(path):
    for link in LINK.findall(text_of(path)):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), link
        if anchor and found.suffix == ".md":
            assert anchor in anchors_of(found), link


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_tests_and_results_that_are_named_exist(path):
    text = path.read_text(encoding="utf-8")
    for file, test in NAMED.findall(text):
        assert (ROOT / file).exists(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), (file, test)
    for result in RESULT.findall(text):
        assert (ROOT / result).exists(), result


def test_each_result_is_named_by_a_document_or_program():
    """A plot lies beside the result that it shows."""
    folder = ROOT / "perf" / "results"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "perf/results"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    kept = {Path(name).name for name in listed.stdout.splitlines()} - {".gitkeep"}
    programs = [path for path in (ROOT / "perf").iterdir() if path.is_file()]
    named = "".join(path.read_text(encoding="utf-8") for path in {*DOCUMENTS, *programs})
    results = {name for name in kept if name.endswith(".json")}
    assert [name for name in sorted(results) if f"{folder.name}/{name}" not in named] == []
    assert {name for name in kept if Path(name).with_suffix(".json").name not in results} == set()


def test_each_document_is_named_by_another():
    """What no document leads to is found by nobody."""
    named = {
        (path.parent / link.partition("#")[0]).resolve()
        for path in DOCUMENTS
        for link in LINK.findall(text_of(path))
        if "://" not in link
    }
    alone = [name_of(path) for path in DOCUMENTS if path.name != "README.md" and path not in named]
    assert not alone


def test_each_decision_has_its_line_in_the_index():
    folder = ROOT / "docs" / "decisions"
    index = re.findall(
        r"^\| \[(\d+)\]\(([\w-]+\.md)\) \|", text_of(folder / "README.md"), re.MULTILINE
    )
    there = [path.name for path in sorted(folder.glob("[0-9]*.md"))]
    assert [name for _, name in index] == there
    assert all(name.startswith(number + "-") for number, name in index)


def test_documents_that_sources_name_exist():
    """By their place in the project, in docs/ or beside the file."""
    for path in SOURCES:
        for named in IN_PYTHON.findall(path.read_text(encoding="utf-8")):
            folders = (ROOT, ROOT / "docs", path.parent)
            assert any((folder / named).exists() for folder in folders), f"{path}: {named}"


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
def test_no_unknown_file_lies_at_the_root():
    listed = subprocess.run(
        ["git", "ls-files", "--cached"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    assert {name for name in listed.stdout.splitlines() if "/" not in name} == AT_THE_ROOT


def test_table_of_checks_is_what_the_doctor_does():
    ran = subprocess.run([sys.executable, ROOT / "scripts" / "make_doctor_table", "--check"])
    assert ran.returncode == 0, "run scripts/make_doctor_table"
