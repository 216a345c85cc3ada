"""Each API's module, the table of Kafka's APIs and docs/apis.md say the same."""

import functools
import importlib
import re
import subprocess
import sys
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from shmbroker.apis import table
from shmbroker.apis.broker import list_segments, sync_group
from shmbroker.security.access import groups as access
from shmbroker.spark import options
from shmbroker.wire import api_keys
from tests.processes import wire_expectations
from tests.tidy.sources import PACKAGE, ROOT

HEADLINE = re.compile(r"(?P<name>\w+) \(key (?P<key>\d+)[^)]*\):? ?")
VERSIONS = re.compile(r"^Versions: (\d+)(?:-(\d+))?\b", re.MULTILINE)
DIFFERENT = tomllib.loads((ROOT / "docs" / "apis.toml").read_text(encoding="utf-8"))["different"]

MODULES = [
    importlib.import_module(
        f"shmbroker.{path.relative_to(PACKAGE).with_suffix('').as_posix().replace('/', '.')}"
    )
    for path in [
        PACKAGE / "gateway" / "produce.py",
        PACKAGE / "gateway" / "fetch.py",
        *sorted((PACKAGE / "apis").glob("*/*.py")),
    ]
    if path.stem != "__init__"
]


def id_of(module):
    return module.__name__.rpartition(".")[2]


@pytest.mark.parametrize("module", MODULES, ids=id_of)
def test_head_agrees_with_api_keys(module):
    name, first, last, flexible = api_keys.TABLE[module.API_KEY]
    assert first <= module.VERSION_MIN <= module.VERSION_MAX <= last
    assert module.VERSION_MIN_ADVERTISED <= module.VERSION_MIN
    assert getattr(module, "NAME", name) == name
    assert getattr(module, "FLEXIBLE_FROM", flexible) == flexible


@pytest.mark.parametrize("module", MODULES, ids=id_of)
def test_docstring_agrees_with_head(module):
    headline = HEADLINE.match(module.__doc__)
    assert headline, "begin with: Name (key N)"
    assert headline["name"] == api_keys.TABLE[module.API_KEY][0]
    assert int(headline["key"]) == module.API_KEY
    first, last = VERSIONS.search(module.__doc__).groups()
    assert (int(first), int(last or first)) == (module.VERSION_MIN, module.VERSION_MAX)


def test_every_module_is_in_the_table_once():
    assert [api[0] for api in table.HOT] == [module.API_KEY for module in MODULES[:2]]
    listed = (
        *MODULES[:2],
        *table.IN_NETWORK_WORKER,
        *table.UNADVERTISED,
        *table.IN_IO_WORKER,
        *table.ON_CONTROL_SOCKET,
        *table.IN_CONTROLLER,
        *table.OF_BROKERS,
    )
    assert sorted(map(id_of, listed)) == sorted(map(id_of, MODULES))


def keys_of(*rows):
    return {module.API_KEY for row in rows for module in row}


def test_what_is_said_of_some_apis_is_said_of_served_ones():
    in_worker = keys_of(table.IN_IO_WORKER)
    assert in_worker >= {*table.GROUPS_OF, *table.TRANSACTIONS_OF}
    assert in_worker >= {*table.WAITING, *table.SOON_ANSWERED}
    assert in_worker | keys_of(table.HOT) >= {*table.ASKED_BY_GUESTS}
    assert in_worker >= keys_of(table.WITH_STANDING_ANSWERS)
    assert keys_of(table.IN_NETWORK_WORKER, table.UNADVERTISED) >= keys_of(table.AFRESH)
    assert keys_of(table.ON_CONTROL_SOCKET, table.IN_NETWORK_WORKER) >= table.FOR_READERS


@pytest.mark.parametrize(
    ("coordinator", "held"),
    [("groups", table.GROUPS_OF), ("transactions", table.TRANSACTIONS_OF)],
)
def test_whom_a_coordinators_answer_is_about_is_in_the_table(coordinator, held):
    asking = {
        module.API_KEY
        for module in table.IN_IO_WORKER
        if re.search(
            rf"\bbroker\.{coordinator}\.", Path(module.__file__).read_text(encoding="utf-8")
        )
    }
    # The marker itself waits for the replicas: `BrokerContext.when_replicated`.
    assert asking - {api_keys.WRITE_TXN_MARKERS} == set(held)


def test_rooms_that_do_not_import_each_other_agree():
    # The gateway's rights and Spark's driver do without the modules of the I/O workers' APIs.
    assert sync_group.PROTOCOL_REQUIRED_FROM == access.PROTOCOL_REQUIRED_FROM
    assert list_segments.HOLD_MS_MAX == options.HOLD_MS_MAX


def test_table_is_in_api_key_order():
    for rows in (
        table.HOT,
        table.IN_NETWORK_WORKER,
        table.IN_IO_WORKER,
        table.IN_CONTROLLER,
        table.OF_BROKERS,
    ):
        keys = [module.API_KEY for module in rows]
        assert keys == sorted(keys)


def test_document_is_what_the_code_and_its_data_say():
    ran = subprocess.run([sys.executable, ROOT / "scripts" / "make_api_table", "--check"])
    assert ran.returncode == 0, "run scripts/make_api_table"


@functools.cache
def recorded_cases() -> list[str]:
    """Every case that there are answers of, as docs/apis.toml names it."""
    _, here = wire_expectations.load()
    return [f"{scenario} / {case}" for scenario, case in here]


@pytest.mark.parametrize("row", DIFFERENT, ids=lambda row: row["where"])
def test_each_difference_is_shown_by_recorded_answers_or_by_a_test(row):
    recorded = recorded_cases()
    for like in row.get("cases", ()):
        assert any(fnmatchcase(name, like) for name in recorded), f"nothing differs: {like}"
    for named in row.get("tests", ()):
        file, _, test = named.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), named
    assert ("unchecked" in row) != bool(row.get("cases") or row.get("tests"))


def test_advertised_is_what_is_served():
    advertised = table.advertised()
    keys = [row["api_key"] for row in advertised]
    assert keys == sorted(set(keys))
    assert all(key < 20_000 for key in keys), "our own APIs are not for clients"
