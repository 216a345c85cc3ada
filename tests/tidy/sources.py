"""What the tidy tests look at: the project's own modules, parsed once."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shmbroker"


def modules(*folders: str) -> list[Path]:
    """Every Python file under these folders of the project, in order."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """The path below the project's root, as the documents write it."""
    return path.relative_to(ROOT).as_posix()


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


@functools.cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All of a module's tree, parents before what is in them: to walk it takes as long as to parse
    it."""
    return tuple(ast.walk(tree_of(path)))


def docstrings() -> Iterator[tuple[str, str]]:
    """Each text of the package that stands alone as a statement, with where it stands."""
    for path in modules("shmbroker"):
        for node in nodes_of(path):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                yield f"{name_of(path)}:{node.lineno}", node.value.value.strip()


def imported(path: Path) -> set[str]:
    """Top-level names of everything that a module imports, anywhere in it."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found


def attributes(path: Path) -> set[str]:
    """Everything that a module writes as `name.attribute`, whatever it stands for, and every name
    that it takes from another module."""
    found = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found
