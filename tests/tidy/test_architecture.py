"""ARCHITECTURE.md against what is there: its file map, its layers, its budget."""

import importlib.util
import re
import tomllib

from tests.tidy.sources import PACKAGE, ROOT, modules, name_of

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
ROW = re.compile(r"^\| `([a-z_0-9/]+\.py)` \|", re.MULTILINE)
FILE = re.compile(r"`([a-z_0-9/]+\.py)`")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def section(title: str) -> str:
    """The text below a heading, up to the next of its kind."""
    start = TEXT.index(f"\n## {title}\n")
    end = TEXT.find("\n## ", start + 1)
    return TEXT[start : end if end > 0 else len(TEXT)]


def test_file_map_lists_every_module_once():
    listed = ROW.findall(section("Where things live"))
    there = [
        name_of(path)[len("shmbroker/") :]
        for path in modules("shmbroker")
        if path.name not in ("__init__.py", "__main__.py")
    ]
    assert {"missing": set(there) - set(listed), "stale": set(listed) - set(there)} == {
        "missing": set(),
        "stale": set(),
    }
    assert len(listed) == len(there), "a file is listed twice"


def test_files_named_elsewhere_exist():
    for path in FILE.findall(ROW.sub("", TEXT)):
        assert (PACKAGE / path).exists() or (ROOT / path).exists(), path


def test_links_of_the_documents_lead_somewhere():
    for document in ("ARCHITECTURE.md", "README.md", "CHANGELOG.md", "perf/README.md"):
        path = ROOT / document
        for target in LINK.findall(path.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{document}: {target}"


def test_layers_are_those_of_the_import_contract():
    with open(ROOT / "pyproject.toml", "rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    # A package that does not exist yet stands in brackets in the contract.
    there = [
        " | ".join(name for name in layer.split(" | ") if not name.startswith("("))
        for layer in layers
    ]
    drawn = re.search(r"```text layers\n(.*?)```", TEXT, re.DOTALL)[1].strip().splitlines()
    assert drawn == there


def test_budget_names_the_steps_that_are_measured():
    spec = importlib.util.spec_from_file_location("micro", ROOT / "perf" / "micro.py")
    micro = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(micro)
    budget = dict(micro.BUDGET_ROW.findall(TEXT))
    assert list(budget) == list(micro.STEPS)
    total = re.search(r"all of it, busy: (\d+\.\d) µs", TEXT)[1]
    assert float(total) == round(sum(map(float, budget.values())), 1)
