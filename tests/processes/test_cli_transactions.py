"""`shmbroker transaction`, and `consume --isolation`, against transactions of confluent-kafka."""

from collections.abc import Iterator

import pytest

from shmbroker import clock
from shmbroker.cli.doctor.facts import ClusterFacts
from shmbroker.cli.doctor.gather_cluster import LATE_MS, look_at_transactions
from shmbroker.records.batch import encode_batch
from shmbroker.testing.broker import Broker
from tests.processes.test_cli import Shell, lines
from tests.support.raw_client import RawClient

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def shell() -> Iterator[Shell]:
    # Without verification a leader takes what no coordinator knows, as brokers of before did.
    with Broker(
        "--io-workers",
        "2",
        "--set",
        "transaction.partition.verification.enable=false",
        "--set",
        "group.initial.rebalance.delay.ms=0",
    ) as broker:
        yield Shell(broker)


class Transactional:
    """confluent-kafka's producer."""

    def __init__(self, shell: Shell, transactional_id: str) -> None:
        from confluent_kafka import Producer

        settings = {
            "bootstrap.servers": shell.broker.address,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 50_000,
        }
        self.producer = Producer(settings)
        self.producer.init_transactions(PATIENCE_S)

    def begin(self, topic: str, *values: str) -> None:
        """A transaction with these values in partition 0, which stays open."""
        self.producer.begin_transaction()
        for value in values:
            self.producer.produce(topic, value, partition=0)
        assert not self.producer.flush(PATIENCE_S)

    def commit(self) -> None:
        self.producer.commit_transaction(PATIENCE_S)

    def abort(self) -> None:
        self.producer.abort_transaction(PATIENCE_S)


def leave_hanging(shell: Shell, topic: str, producer_id: int) -> None:
    """A batch of a transaction that its leader took and that no coordinator knows."""
    batch = encode_batch(
        [(clock.now_ms(), None, b"hanging", [])],
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    row = {"index": 0, "records": batch}
    body = {
        "transactional_id": "forgotten",
        "acks": -1,
        "timeout_ms": 10_000,
        "topic_data": [{"name": topic, "partition_data": [row]}],
    }
    leader = shell.json("topic", "describe", topic)[0]["partitions"][0]["leader"]
    port = shell.broker.port + leader - 1
    with RawClient(f"127.0.0.1:{port}") as client:
        (answer,) = client.ask("Produce", 9, body)["responses"][0]["partition_responses"]
    assert answer["error_code"] == 0


def doctors_word(
    shell: Shell, now_ms: int, longest_ms: int
) -> tuple[list[tuple[str, int, int]] | None, list[str] | None]:
    """What `shmbroker doctor` says at that time: (what hangs, what is late)."""
    found = ClusterFacts(report={"partitions": 2, "offline": []})
    look_at_transactions(found, [("127.0.0.1", shell.broker.port)], longest_ms, now_ms)
    return found.hanging, found.late_transactions


def test_list_shows_states_and_filters_them(shell: Shell) -> None:
    shell.run("topic", "create", "listed", "-p", "1")
    one, other = Transactional(shell, "listed-open"), Transactional(shell, "listed-done")
    one.begin("listed", "a")
    other.begin("listed", "b")
    other.commit()
    rows = {row["transactional_id"]: row for row in shell.json("transaction", "list")}
    assert rows["listed-open"]["state"] == "ongoing"
    assert rows["listed-done"]["state"] == "complete-commit"

    ongoing = shell.json("transaction", "list", "--state", "ongoing")
    assert ongoing == [rows["listed-open"]]
    of_producer = shell.json(
        "transaction", "list", "--producer-id", str(rows["listed-done"]["producer_id"])
    )
    assert of_producer == [rows["listed-done"]]
    assert shell.json("transaction", "list", "--longer-than", "100000000") == []
    table = shell.text("transaction", "list", "--state", "ongoing").splitlines()
    assert table[0].split() == ["TRANSACTIONAL-ID", "COORDINATOR", "PRODUCER-ID", "STATE"]
    assert table[1].split()[0] == "listed-open"
    one.abort()


def test_describe_shows_what_is_open(shell: Shell) -> None:
    shell.run("topic", "create", "described", "-p", "3")
    producer = Transactional(shell, "described-1")
    producer.begin("described", "a")
    (row,) = shell.json("transaction", "describe", "described-1")
    assert row["state"] == "ongoing"
    assert row["partitions"] == ["described-0"]
    assert row["timeout_ms"] == 50_000
    assert 0 <= row["age_ms"] < PATIENCE_S * 1000
    (same,) = shell.json("transaction", "describe", "described-*")
    assert same["producer_id"] == row["producer_id"]
    producer.commit()
    text = shell.text("transaction", "describe", "described-1")
    assert "state             complete-commit\n" in text
    assert "partitions        none\n" in text

    shell.run("transaction", "describe", "nowhere", status=1)
    assert shell.errors == (
        "shmbroker: there is no transaction nowhere; `shmbroker transaction list` shows what is"
        " there\n"
    )


def test_what_hangs_is_found_and_aborted(shell: Shell) -> None:
    shell.run("topic", "create", "hanging", "-p", "2")
    shell.run("produce", "hanging", "-p", "0", given="before\n")
    alive = Transactional(shell, "hanging-not")
    leave_hanging(shell, "hanging", 77_000)
    alive.begin("hanging", "alive")
    find = ("transaction", "find-hanging", "hanging", "--max-transaction-timeout")
    # Records of the last hour are no sign of anything.
    assert shell.json(*find, "60") == []
    assert shell.errors == "shmbroker: no transaction hangs\n"
    (found,) = shell.json(*find, "0")
    assert (found["topic"], found["partition"]) == ("hanging", 0)
    assert (found["producer_id"], found["start_offset"]) == (77_000, 1)
    now_ms = clock.now_ms()
    assert doctors_word(shell, now_ms, 0) == ([("hanging", 0, 1)], [])
    assert doctors_word(shell, now_ms, 3_600_000) == ([], [])
    # Nobody has ended the other one at a time at which its coordinator should have.
    assert doctors_word(shell, now_ms + 50_000 + LATE_MS + 1_000, 0)[1] == ["hanging-not"]
    alive.commit()
    assert lines(shell, "hanging", "--isolation", "read_committed") == ["before"]

    abort = ("transaction", "abort", "hanging", "0", "--start-offset")
    shell.run(*abort, "0", status=1)
    assert "has no open transaction that begins at 0; open ones begin at 1\n" in shell.errors
    shell.run(*abort, "1")
    assert "aborted the transaction of producer 77000 from offset 1 on" in shell.errors
    assert shell.json(*find, "0") == []
    assert lines(shell, "hanging", "--isolation", "read_committed") == ["before", "alive"]
    shell.run(*abort, "1", status=1)
    assert "none is open there\n" in shell.errors
    shell.run("transaction", "abort", "hanging", "9", "--start-offset", "1", status=1)
    assert "topic hanging has no partition 9" in shell.errors
    shell.run("transaction", "abort", "no-such", "0", "--start-offset", "1", status=1)
    assert "there is no topic no-such" in shell.errors


def test_consume_tells_the_isolation_levels_apart(shell: Shell) -> None:
    shell.run("topic", "create", "isolated", "-p", "1")
    producer, other = Transactional(shell, "isolated-1"), Transactional(shell, "isolated-2")
    producer.begin("isolated", "committed")
    producer.commit()
    producer.begin("isolated", "aborted")
    producer.abort()
    producer.begin("isolated", "open")
    other.begin("isolated", "behind")
    other.commit()
    everything = ["committed", "aborted", "open", "behind"]
    assert lines(shell, "isolated", "--isolation", "read_uncommitted") == everything
    assert lines(shell, "isolated", "--isolation", "read_committed") == ["committed"]
    assert lines(shell, "isolated") == ["committed"]
    # Reading ends, and counts from, where the first open transaction begins.
    last = ("-o", "-2", "--isolation")
    assert lines(shell, "isolated", *last, "read_committed") == []
    assert lines(shell, "isolated", *last, "read_uncommitted") == ["behind"]
    group = ("-G", "isolated", "--isolation", "read_committed")
    assert lines(shell, "isolated", *group) == ["committed"]
    producer.commit()
    assert lines(shell, "isolated", *group) == ["open", "behind"]
