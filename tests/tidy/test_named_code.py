"""Names of code: one name means one class, and what docstrings name is there."""

import ast
import functools
import re

from tests.tidy.sources import docstrings, modules, name_of, nodes_of, tree_of

FAULT = re.compile(r"\b[A-Z]\w*Fault\b")
MEMBER = re.compile(r"(?<!Kafka's )`([A-Z]\w+)\.([a-z_0-9]+)\b")
"""`Class.member`; names with humps are Kafka's."""

TWICE = {
    "Broker": "the one that works, as it is seen from outside, and the one for others' tests",
    "Connection": "a client's end of it, and the gateway's",
    "Groups": "what API modules may ask, and what is seen from outside",
    "KeyOffsets": "the map of keys, with loops in numpy and with compiled ones",
    "ListedSegment": "as a leader lists it, and as its reader does; the client does without `log`",
    "Membership": "the Protocol of it, for API modules",
    "Partition": "a replica that works, and as it is seen from outside",
    "ProducerRequests": "the Protocol of it, for API modules",
    "Records": "what compaction looks at, with loops in numpy and with compiled ones",
    "ToldEnds": "the Protocol of it, for API modules",
    "Topic": "as a client knows it, and as it is seen from outside",
}
"""Names that several classes have, and why."""


@functools.cache
def classes() -> list[ast.ClassDef]:
    """Every class of the package, inner ones, too."""
    nodes = (node for path in modules("shmbroker") for node in nodes_of(path))
    return [node for node in nodes if isinstance(node, ast.ClassDef)]


def members() -> dict[str, set[str]]:
    """What each class of the package has, or takes from one that it stands on."""
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for each in classes():
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


def test_a_name_means_one_class() -> None:
    where: dict[str, list[str]] = {}
    for path in modules("shmbroker"):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(name_of(path))
    found = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert found.keys() == TWICE.keys(), found


def test_faults_that_docstrings_name_exist() -> None:
    faults = {each.name for each in classes()}
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
