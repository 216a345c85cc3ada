"""Names of code in docstrings: what they name is there."""

import ast
import re

from tests.tidy.sources import docstrings, modules, tree_of

CLASSES = [
    node
    for path in modules("shmbroker")
    for node in ast.walk(tree_of(path))
    if isinstance(node, ast.ClassDef)
]
FAULT = re.compile(r"\b[A-Z]\w*Fault\b")
MEMBER = re.compile(r"(?<!Kafka's )`([A-Z]\w+)\.([a-z_0-9]+)\b")
"""`Class.member`; names with humps are Kafka's."""


def members() -> dict[str, set[str]]:
    """What each class of the package has, or takes from one that it stands on."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for each in CLASSES:
        found = own.setdefault(each.name, set())
        bases.setdefault(each.name, set()).update(map(ast.unparse, each.bases))
        for node in ast.walk(each):
            if isinstance(node, ast.FunctionDef):
                found.add(node.name)
            elif isinstance(node, ast.Name):
                found.add(node.id)
            elif isinstance(node, ast.Attribute):
                found.add(node.attr)

    def of(name: str) -> set[str]:
        return own.get(name, set()).union(*map(of, bases.get(name, ())))

    return {name: of(name) for name in own}


def test_faults_that_docstrings_name_exist() -> None:
    faults = {each.name for each in CLASSES}
    found = [(at, name) for at, text in docstrings() for name in FAULT.findall(text)]
    assert len(found) > 100
    assert [row for row in found if row[1] not in faults] == []


def test_members_of_classes_that_docstrings_name_exist() -> None:
    known = members()
    found = [
        (at, *row) for at, text in docstrings() for row in MEMBER.findall(text) if row[0] in known
    ]
    assert len(found) > 50
    assert [row for row in found if row[2] not in known[row[1]]] == []
