"""ARCHITECTURE.md against what is there: its packages, files, functions and steps; its length."""

import ast
import importlib.util
import re
import tomllib

import pytest

from tests.tidy.sources import PACKAGE, ROOT, tree_of

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
LINES_MAX = 250
WORDS_MAX = 4000
"""It is read in one sitting."""
CELL_WORDS_MAX = 45
"""What needs more is no table."""
ROOM = re.compile(r"^\| ((?:`[a-z_0-9/]+(?:/|\.py)`(?:, )?)+) \|", re.MULTILINE)
FILE = re.compile(r"`([a-z_0-9/]+\.py)`")
FUNCTIONS = re.compile(r"`([a-z_0-9/]+\.py)` (`[\w.]+`(?:, `(?!\w+\.py)[\w.]+`)*)")
"""A file and, behind it, functions that are in it."""
WAY = re.compile(r"^\| ([PFJRD]\d+) \|.*", re.MULTILINE)
STEP = re.compile(r"^\| (P\d+) \|", re.MULTILINE)


def section(title: str) -> str:
    """The text below a heading, up to the next of its kind."""
    start = TEXT.index(f"\n## {title}\n")
    end = TEXT.find("\n## ", start + 1)
    return TEXT[start : end if end > 0 else len(TEXT)]


def rooms() -> list[str]:
    """Packages and one-file modules, in the order of the document."""
    return [
        name
        for row in ROOM.findall(section("The rooms"))
        for name in row.replace("`", "").split(", ")
    ]


def test_each_package_is_named_once():
    packages = {
        path.parent.relative_to(PACKAGE).as_posix() + "/"
        for path in PACKAGE.rglob("__init__.py")
        if path.parent != PACKAGE
    }
    files = {path.name for path in PACKAGE.glob("*.py") if not path.name.startswith("__")}
    listed = rooms()
    assert {
        "missing": (packages | files) - set(listed),
        "stale": set(listed) - packages - files,
    } == {
        "missing": set(),
        "stale": set(),
    }
    assert len(listed) == len(set(listed)), "a package is listed twice"


def test_rooms_stand_in_the_order_of_the_layers():
    with open(ROOT / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    level = {name: at for at, layer in enumerate(layers) for name in re.findall(r"\w+", layer)}
    listed = [name.split("/")[0] for name in rooms() if name.endswith("/")]
    levels = [level[name] for name in listed if name in level]
    assert len(levels) > len(listed) / 2
    assert levels == sorted(levels)


def test_files_that_are_named_exist():
    for path in set(FILE.findall(TEXT)):
        assert (PACKAGE / path).exists() or (ROOT / path).exists(), path


STEPS_IN = ["ARCHITECTURE.md", "docs/replication.md", "docs/controllers.md", "docs/security.md"]


@pytest.mark.parametrize("name", STEPS_IN)
def test_functions_that_are_named_are_in_their_files(name):
    named = FUNCTIONS.findall((ROOT / name).read_text(encoding="utf-8"))
    assert named
    for path, functions in named:
        there = functions_of(path)
        for function in functions.replace("`", "").split(", "):
            assert function in there, f"{path} has no {function}"


def functions_of(path: str) -> set[str]:
    """`function` and `Class.method` of a module of ours."""
    found = set()
    for node in tree_of(PACKAGE / path).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            found |= {f"{node.name}.{each.name}" for each in methods}
    return found


@pytest.mark.parametrize("name", STEPS_IN)
def test_each_step_names_a_function(name):
    for step in WAY.finditer((ROOT / name).read_text(encoding="utf-8")):
        assert FUNCTIONS.search(step[0]), f"where is {step[1]}?"


def test_it_is_short():
    assert len(TEXT.splitlines()) <= LINES_MAX
    assert len(TEXT.split()) <= WORDS_MAX


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "docs/glossary.md", "docs/operations.md"])
def test_cells_are_short(name):
    for line in (ROOT / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("|"):
            longest = max(line.split("|"), key=lambda cell: len(cell.split()))
            assert len(longest.split()) <= CELL_WORDS_MAX, longest


def test_budget_names_the_steps_that_are_measured():
    spec = importlib.util.spec_from_file_location("micro", ROOT / "perf" / "micro.py")
    micro = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(micro)
    readme = (ROOT / "perf" / "README.md").read_text(encoding="utf-8")
    budget = dict(micro.BUDGET_ROW.findall(readme))
    assert list(budget) == list(micro.STEPS)
    assert STEP.findall(section("Produce")) == list(micro.STEPS)
    total = re.search(r"all of it, busy: (\d+\.\d) µs", readme)[1]
    assert float(total) == round(sum(map(float, budget.values())), 1)
