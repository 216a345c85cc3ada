"""Rules that every module keeps, and that no linter knows."""

import ast
import re
import subprocess
import sys
import tomllib

import pytest

from tests.tidy.sources import (
    PACKAGE,
    ROOT,
    attributes,
    docstrings,
    imported,
    modules,
    name_of,
    nodes_of,
    tree_of,
)

HEAVY = (
    "asyncio",
    "cramjam",
    "dataclasses",
    "inspect",
    "lz4",
    "numpy",
    "pyarrow",
    "pyspark",
    "unittest",
)
"""Modules that cost the start of a broker more than they give it."""

ALL = [ROOT / "pyspark_shmbroker.py", *modules("shmbroker", "perf")]
PACKAGE_MODULES = modules("shmbroker")
ANYTHING = {"Any", "Any | None", "object"}
FRAGMENT = re.compile(r"(Those|That|Who|Whoever|Whose|Of|Them|And|But|The same|The one)\b")
"""Words whose sentence makes sense only beside the name that it explains."""
FORKING = {"os.fork", "os.forkpty", "os.posix_spawn", "os.posix_spawnp"}


def test_modules_open_with_a_docstring():
    found = [name_of(path) for path in ALL if not ast.get_docstring(tree_of(path))]
    assert found == [], "say what it is, and its rules"


def test_linter_looks_at_each_program():
    """It finds .py by itself; programs have no suffix."""
    programs = set()
    for folder in ("examples", "ops", "perf", "scripts", "systemd", "tests"):
        for path in (ROOT / folder).rglob("*"):
            if not path.suffix and path.is_file():
                with open(path, "rb") as file:
                    if re.match(rb"#!.*python", file.readline()):
                        programs.add(name_of(path))
    with open(ROOT / "pyproject.toml", "rb") as file:
        told = tomllib.load(file)["tool"]["ruff"]["extend-include"]
    assert told == sorted(programs)


def test_test_modules_have_names_of_their_own():
    """Two of one name can't be collected in one run."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted({name for name in names if names.count(name) > 1}) == []


def test_only_clock_imports_time():
    found = {name_of(path) for path in PACKAGE_MODULES if "time" in imported(path)}
    assert found == {"shmbroker/clock.py"}


def test_only_processes_forks():
    found = {
        name_of(path)
        for path in PACKAGE_MODULES
        if FORKING & attributes(path) or {"multiprocessing", "concurrent"} & imported(path)
    }
    assert found == {"shmbroker/processes/children.py"}


def test_control_words_are_not_packed():
    """CPython's packer clears its target first, and another process reads that zero."""
    for path in modules("shmbroker/shm"):
        packing = {
            node.attr
            for node in nodes_of(path)
            if isinstance(node, ast.Attribute) and node.attr == "pack_into"
        }
        assert not packing, name_of(path)
        assert "struct" not in imported(path), name_of(path)


def test_only_words_casts_to_words():
    """One module owns how a control word is loaded and stored."""
    for path in modules("shmbroker/shm"):
        casts = any(
            isinstance(node, ast.Attribute) and node.attr == "cast" for node in nodes_of(path)
        )
        assert casts == (path.name == "words.py"), name_of(path)


CLEANER_ONLY = {
    "by_kernels.py", "by_numpy.py", "chunks.py", "cleaned_segment.py", "compactor.py", "engine.py",
    "fates.py", "key_offsets.py", "survivors.py",
}  # fmt: skip
"""In log/compaction: imported by the cleaner alone, when it has something to do."""
PAGES_ONLY = {"console.py", "metrics.py"}
"""In processes: imported by that process alone, where it is asked for."""

LIGHT = (
    "processes", "apis", "guests", "gateway", "broker", "groups", "controller", "replica", "log",
    "wire",
)  # fmt: skip
"""Packages of what a family runs from its start."""


def test_processes_import_nothing_heavy():
    names = [
        name_of(path)[:-3].replace("/", ".")
        for folder in LIGHT
        for path in sorted((PACKAGE / folder).rglob("*.py"))
        if path.name != "__init__.py" and path.name not in CLEANER_ONLY | PAGES_ONLY
    ]
    assert imported_by(names) & set(HEAVY) == set()


def test_spark_tasks_import_nothing_that_plans():
    """Spark starts processes that only look for data sources, ask for a schema or run a task."""
    pytest.importorskip("pyspark")
    planning = {"shmbroker.spark.driver", "shmbroker.client.cluster", "shmbroker.wire.codec"}
    found = imported_by(["pyspark_shmbroker"])
    assert "shmbroker.spark.datasource" in found
    assert found & (planning | {"difflib", "numpy", "pyarrow"}) == set()


def imported_by(names):
    """The modules that a fresh Python has more when it has imported these."""
    look = (
        "import sys\n"
        f"before = set(sys.modules)\nimport {', '.join(names)}\n"
        "print(*(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, cwd=ROOT, timeout=60, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return set(ran.stdout.split())


def is_anything(annotation: ast.expr) -> bool:
    """Whether it is Any, Any | None, or object."""
    match annotation:
        case ast.Name(id="Any" | "object"):
            return True
        case ast.BinOp(left=ast.Name(id="Any"), right=ast.Constant(value=None)):
            return True
    return False


def test_hardly_any_parameter_may_be_anything():
    """Less than one in a hundred; what mypy leaves out is nothing."""
    anything = of_all = 0
    for path in modules("shmbroker"):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                for argument in arguments:
                    if argument.arg not in ("self", "cls") and argument.annotation is not None:
                        of_all += 1
                        anything += is_anything(argument.annotation)
    assert anything * 100 < of_all, (anything, of_all)
    with open(ROOT / "pyproject.toml", "rb") as file:
        overrides = tomllib.load(file)["tool"]["mypy"]["overrides"]
    assert not any(override.get("ignore_errors") for override in overrides)
    assert (PACKAGE / "py.typed").exists()


def test_no_docstring_is_half_a_sentence():
    """What a constant means is read without the constant behind it."""
    assert [where for where, text in docstrings() if text.endswith(",")] == []


def test_docstrings_begin_with_no_fragment():
    """ "Who asks." and "Of the leader." do not say what the thing is or does."""
    found = [where for where, text in docstrings() if FRAGMENT.match(text)]
    assert found == [], "begin with a noun or a verb"


KEPT_TWICE = {
    ".deleted": "the client library does without `log`",
    ">hqqqq": "the client library does without `log`",
    ".lock": "one locks a log directory, the other a bucket of backups",
}
"""Names and layouts that two modules have, and why."""


def test_no_name_of_a_file_and_no_layout_is_kept_twice():
    """Of two modules that have it, one would be forgotten when it changes."""
    found = {}
    for path in PACKAGE_MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.Assign) and (kept := name_or_layout(node.value)):
                found.setdefault(kept, []).append(name_of(path))
    assert {kept for kept, where in found.items() if len(where) > 1} == set(KEPT_TWICE), found


def name_or_layout(value):
    """The name of a hidden file, a suffix or an internal topic, or a layout of several fields."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("Struct", "struct.Struct"):
        layout = value.args[0]
        is_long = isinstance(layout, ast.Constant) and len(str(layout.value)) > 4
        return layout.value if is_long else None
    text = value.value if isinstance(value, ast.Constant) else None
    return text if isinstance(text, str) and re.match(r"(\.|__)\w", text) else None
