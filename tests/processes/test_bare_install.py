"""What `pip install .` alone gives: a broker that serves, and one sentence for what is missing.

The optional libraries are hidden from Python by a `sitecustomize` that finds none of them.
`scripts/package_test` does it with real environments.
"""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.extras import LIBRARIES
from shmbroker.testing.broker import Broker
from shmbroker.wire import error_codes
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
OPTIONAL = {
    "boto3", "confluent_kafka", "deltalake", "fastavro", "prometheus_client", "pyarrow", "pyspark",
    "re2", "rich", "tqdm",
}  # fmt: skip
HIDING = f"""
import sys

class Hidden:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden)
"""
NOTHING_FOR_SERVE = OPTIONAL | {"asyncio", "click", "ctypes.util", "numpy", "pytest", "shutil"}
IMPORTED = re.compile(r"^import time: +\d+ \| +\d+ \| +([\w.]+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Every Python that is started finds none of the optional libraries."""
    hiding = tmp_path_factory.mktemp("hiding")
    (hiding / "sitecustomize.py").write_text(HIDING)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{hiding}:{ROOT}")
        yield


@pytest.fixture(scope="module")
def bare_broker(bare: None) -> Iterator[Broker]:
    with Broker("--set", "shmbroker.validation=records") as started:
        yield started


def run(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shmbroker", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, input=given)


def loaded(answer: dict[str, Any]) -> dict[str, Any] | None:
    """The answer of a coordinator that has its groups."""
    loading = (error_codes.NOT_COORDINATOR, error_codes.COORDINATOR_LOAD_IN_PROGRESS)
    return None if answer["error_code"] in loading else answer


def test_bare_broker_serves_a_client(bare_broker: Broker) -> None:
    with RawClient(bare_broker.address) as client:
        client.create_topic("bare")
        assert client.produce("bare", batch_now(b"record"))["error_code"] == 0
        assert b"record" in bytes(client.fetch("bare", 0)["records"])


def test_expression_without_its_library_is_refused_with_a_sentence(bare_broker: Broker) -> None:
    body = {
        "group_id": "bare",
        "member_id": "one",
        "member_epoch": 0,
        "rebalance_timeout_ms": 60_000,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": "ba.*",
        "topic_partitions": [],
    }
    with RawClient(bare_broker.address) as client:
        coordinator = {"key": "bare", "key_type": 0}
        wait_until(
            lambda: client.ask("FindCoordinator", 3, coordinator)["error_code"] == 0, "it is found"
        )
        answer = wait_until(
            lambda: loaded(client.ask("ConsumerGroupHeartbeat", 1, body)), "groups are loaded"
        )
    assert answer["error_code"] == error_codes.INVALID_REGULAR_EXPRESSION
    assert "pip install 'google-re2" in answer["error_message"]
    said = "needs google-re2, which is not installed"
    wait_until(lambda: said in bare_broker.log, "the line about it")


NEED_A_CLIENT = [
    "produce t", "consume t", "topic list", "group list", "config get broker 1",
    "bench produce",
]  # fmt: skip


def test_readme_names_the_commands_of_the_extra_cli() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.search(r"'\.\[cli\]' +# and ([a-z, ]+)", readme)
    assert named is not None
    assert named[1].split(", ") == [*(words.split()[0] for words in NEED_A_CLIENT), "top"]


@pytest.mark.parametrize("words", NEED_A_CLIENT)
def test_command_says_in_one_sentence_what_it_lacks(bare_broker: Broker, words: str) -> None:
    done = run(*words.split(), "-b", bare_broker.address)
    name = words.split()[0]
    library = LIBRARIES["confluent_kafka"]
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"shmbroker: `shmbroker {name}` needs confluent-kafka, which is not installed: "
        f"pip install '{library.requirement}' (the extra {library.extra} has it)\n"
    )


def test_status_tells_that_no_broker_runs_before_what_it_lacks(bare: None) -> None:
    done = run("status", "-b", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot reach 127.0.0.1:1: connection refused" in done.stderr


@pytest.mark.parametrize(
    "words", ["--version", "--help", "produce --help", "serve --help", "log verify {data}"]
)
def test_what_needs_no_client_runs(bare_broker: Broker, words: str) -> None:
    assert run(*words.format(data=bare_broker.data).split()).returncode == 0


def test_what_this_package_asks_itself_needs_no_library(bare_broker: Broker) -> None:
    for words in ("quorum status", "transaction list", "quota list"):
        assert run(*words.split(), "-b", bare_broker.address).returncode == 0
    for words in ("acl list", "token list"):  # refused: there are no authorizer and no tokens
        assert "which is not installed" not in run(*words.split(), "-b", bare_broker.address).stderr


@pytest.fixture
def all_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is hidden, whatever was before."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def imports_of(*words: str, given: str = "") -> set[str]:
    """What Python imported, with its packages, in the process and those that it forked."""
    command = [sys.executable, "-X", "importtime", "-m", "shmbroker", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, input=given)
    assert done.returncode == 0, done.stderr[-500:]
    return set(IMPORTED.findall(done.stderr))


def test_serve_and_its_family_import_nothing_optional(all_is_there: None, tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "shmbroker", "serve"]
    with (
        (tmp_path / "imports").open("w+") as told,
        subprocess.Popen(
            [*command, "--data", str(tmp_path / "data"), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
        ) as serving,
    ):
        try:
            assert serving.stdout is not None
            address = re.search(r"ready on (\S+)", serving.stdout.readline())
            assert address is not None
            with RawClient(address[1]) as client:
                client.create_topic("seen")
                client.produce("seen", batch_now(b"record"))
                client.fetch("seen", 0)
        finally:
            serving.terminate()
            serving.wait(30)
        told.seek(0)
        found = set(IMPORTED.findall(told.read()))
    assert "shmbroker.broker.broker" in found
    assert {name for name in found if name in NOTHING_FOR_SERVE} == set()


def test_produce_and_consume_import_their_client_and_nothing_else(
    all_is_there: None, broker: Broker
) -> None:
    named = ("-b", broker.address, "seen")
    for found in (
        imports_of("produce", *named, given="record\n"),
        imports_of("consume", *named, "-e"),
    ):
        assert found & OPTIONAL == {"confluent_kafka"}


def test_libraries_are_those_of_the_extras() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for module, library in LIBRARIES.items():
        assert library.requirement in extras[library.extra], module
        assert not any(each.startswith(library.distribution) for each in project["dependencies"])


def test_hidden_libraries_can_not_be_imported(bare: None) -> None:
    for name in OPTIONAL:
        command = [sys.executable, "-c", f"import {name}"]
        done = subprocess.run(command, capture_output=True, env=os.environ.copy())
        assert b"No module named" in done.stderr
