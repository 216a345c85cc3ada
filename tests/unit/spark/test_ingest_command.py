"""`shmbroker ingest` as it is typed, as far as it comes without Spark."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
from click.testing import CliRunner, Result
from fake_family import FakeFamily

from shmbroker.cli.client import TargetCluster
from shmbroker.cli.ingest import command
from shmbroker.cli.ingest_summary import summary
from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest import prepare, run
from shmbroker.spark.ingest.plan import IngestPlan

Ingest = Callable[..., Result]


@pytest.fixture
def ingest(tmp_path: Path) -> Iterator[Ingest]:
    """The command, for a broker with an empty topic t, into directories of the test's own."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with FakeFamily(tmp_path / "broker") as family:
        family.create("t")
        family.create("u")

        def invoke(*words: str) -> Result:
            words = tuple(word.replace("DATA", str(tmp_path / "data")) for word in words)
            return CliRunner().invoke(command, [*words, "--bootstrap-server", family.address])

        yield invoke
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: object) -> None:
        raise AssertionError("Spark is started")

    monkeypatch.setattr(run.running, "session", session)
    # the fake answers the driver of the Spark source, and nobody else
    monkeypatch.setattr(TargetCluster, "check_reachable", lambda _cluster: None)


def test_an_ingest_with_nothing_to_do_starts_no_spark(ingest: Ingest, tmp_path: Path) -> None:
    for words in (["--schema", "n int"], []):
        done = ingest("t", "--to", "DATA/table", *words)
        assert (done.exit_code, done.exception) == (0, None)
        assert done.output.startswith("t: nothing new (rows are in")
    assert [path.name for path in (tmp_path / "data").iterdir()] == [".table.shmbroker"]
    done = ingest("t", "u", "--to", "DATA/table", "--schema", "n int", "--json")
    assert [row["topic"] for row in json.loads(done.output)] == ["t", "u"]


@pytest.mark.parametrize("words", [["nottthere"], ["t", "nottthere"], ["nottthere", "--infer"]])
def test_a_mistyped_topic_leaves_nothing(ingest: Ingest, tmp_path: Path, words: list[str]) -> None:
    done = ingest(*words, "--to", "DATA/x/y", "--checkpoint", "DATA/c", "--dead-letter", "DATA/bad")
    assert isinstance(done.exception, ConfigFault)
    assert "there is no topic nottthere" in str(done.exception)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--dead-letter", "bad", "--skip-bad"], "give one of them"),
        (["--replay", "--skip-bad"], "leave --skip-bad and --fail-on-bad out"),
        (["--from", "yesterday"], "'yesterday' is no moment"),
        (["-o", "startingOffsets=latest"], "--from does"),
        (["-o", "SUBSCRIBE=u"], "TOPIC names what is read"),
        (["-o", "kafka.SASL.password=x"], "can't set kafka.SASL.password: TLS, user and password"),
        (["-o", "kafka.security.protocol=SSL"], "are those of --profile"),
        (["--infer", "--schema", "n int"], "give one of them"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(
    ingest: Ingest, words: list[str], told: str
) -> None:
    done = ingest("t", "--to", "DATA/table", *words)
    assert done.exit_code == 2
    assert told in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("words", "level"),
    [
        ([], "read_committed"),
        (["-o", "Kafka.Isolation.Level=read_uncommitted"], "read_uncommitted"),
    ],
)
def test_what_is_committed_is_read_unless_the_other_is_asked_for(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, words: list[str], level: str
) -> None:
    sources: list[Mapping[str, str]] = []

    def has_nothing_new(_kept: object, source: Mapping[str, str]) -> bool:
        sources.append(source)
        return True

    monkeypatch.setattr(prepare, "has_nothing_new", has_nothing_new)
    assert ingest("t", "--to", "DATA/table", "--schema", "n int", *words).exit_code == 0
    (source,) = sources
    found = [value for name, value in source.items() if name.lower() == "kafka.isolation.level"]
    assert found == [level]


def test_the_start_of_spark_is_in_the_rate() -> None:
    totals = run.Totals(1000, 900, files=1, micro_batches=1, seconds=2.0, start_seconds=8.0)
    told = summary(IngestPlan("id", "t", "/p"), totals._replace(skipped=100))
    assert "10.0 s (8.0 s of it Spark's start), 100 rows/s" in told
    assert "100 bad records left out" in told
