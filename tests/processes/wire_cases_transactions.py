"""More wire cases: transactions, by good and bad ids, epochs, states and partitions.

Rules as in `wire_cases`. Kafka says CONCURRENT_TRANSACTIONS while a transaction is ending, and so
do we if that takes long: both are asked again then, and for a coordinator that still loads.
"""

from typing import Any

from shmbroker import clock
from shmbroker.records.batch import iterate_batches
from tests.processes.wire_cases import Answers, scenario, versions
from tests.processes.wire_cases_produce import by_id
from tests.processes.wire_side import Side
from tests.support.raw_client import RawClient, batch_of, fetch_body, produce_body
from tests.support.waiting import wait_until

PATIENCE_S = 20.0
AGAIN = (3, 6, 14, 15, 16, 51)
"""Nobody leads or coordinates yet, or something is ending."""


class Producer:
    """A transactional producer of one id, with what it was told last."""

    def __init__(self, side: Side, short: str, version: int = 5) -> None:
        self.side = side
        self.name = side.name(short)
        self.producer_id = self.epoch = -1
        find(side, self.name, 1)
        self.init(version)

    def ask(self, api: str, version: int, body: dict[str, Any], *errors: str) -> Any:
        """The answer, once it is not one that is to be asked again. errors: where codes stand."""
        return patiently(lambda: self.side.ask(api, version, body))

    def init(self, version: int = 5, **more: Any) -> Any:
        body = {"transactional_id": self.name, "transaction_timeout_ms": 60_000} | more
        with RawClient(self.side.address) as client:
            found = patiently(lambda: client.ask("InitProducerId", version, body))
        if not found["error_code"]:
            self.producer_id, self.epoch = found["producer_id"], found["producer_epoch"]
        return self.side.comparable("InitProducerId", version, found)

    def who(self, **more: Any) -> dict[str, Any]:
        known = {
            "transactional_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
        }
        return known | more

    def end(self, version: int, committed: bool, **more: Any) -> Any:
        body = self.who(committed=committed, **more)
        with RawClient(self.side.address) as client:
            found = patiently(lambda: client.ask("EndTxn", version, body))
        if not found["error_code"] and version >= 5 and not more:
            self.producer_id, self.epoch = found["producer_id"], found["producer_epoch"]
        return self.side.comparable("EndTxn", version, found)

    def add(self, version: int, topics: dict[str, list[int]], **more: Any) -> Any:
        rows = [{"name": name, "partitions": indexes} for name, indexes in topics.items()]
        who = self.who(**more)
        if version >= 4:
            body = {"transactions": [who | {"topics": rows} | {"verify_only": False} | more]}
        else:
            body = {f"v3_and_below_{name}": value for name, value in who.items()}
            body["v3_and_below_topics"] = rows
        found = patiently(lambda: self.side.ask("AddPartitionsToTxn", version, body))
        for result in found.get("results_by_transaction", [found]):
            for key in ("topic_results", "results_by_topic_v3_and_below"):
                for topic in result.get(key, ()):
                    topic.get("results_by_partition", []).sort(
                        key=lambda row: row.get("partition_index", 0)
                    )
                result.get(key, []).sort(key=lambda topic: topic["name"])
        return found

    def produce(self, version: int, topic: str, index: int, sequence: int, **more: Any) -> Any:
        who = self.who(**more)
        batch = batch_of(
            b"x",
            producer_id=who["producer_id"],
            producer_epoch=who["producer_epoch"],
            base_sequence=sequence,
            is_transactional=True,
        )
        body = produce_body(topic, batch, index) | {"transactional_id": who["transactional_id"]}
        found = patiently(lambda: self.side.ask("Produce", version, body))
        return found["responses"][0]["partition_responses"][0].get("error_code", 0)


def patiently(ask: Any) -> Any:
    """Ask until the answer is not to be asked again."""
    deadline = clock.monotonic() + PATIENCE_S
    while is_temporary(found := ask()) and clock.monotonic() < deadline:
        clock.sleep(0.02)
    return found


def is_temporary(answer: Any) -> bool:
    if isinstance(answer, dict):
        for name, value in answer.items():
            if name.endswith("error_code"):
                if value in AGAIN[2:]:
                    return True
            elif is_temporary(value):
                return True
    return isinstance(answer, list) and any(map(is_temporary, answer))


def find(side: Side, key: str, kind: int) -> None:
    """Until the key has a coordinator."""
    body = {"key_type": kind, "coordinator_keys": [key]}
    patiently(lambda: side.ask("FindCoordinator", 4, body))


@scenario
def transaction_coordinators(side: Side) -> Answers:
    find(side, "x", 1)
    for version in versions("FindCoordinator"):
        for name in ("x", ""):
            body: dict[str, Any] = {"key_type": 1, "coordinator_keys": [name]}
            if version < 4:
                body = {"key_type": 1, "key": name}
            if version:
                yield (
                    f"transactional id '{name}'",
                    version,
                    side.ask("FindCoordinator", version, body),
                )


@scenario
def transactional_ids(side: Side) -> Answers:
    """InitProducerId: new, again, with an epoch, in each state."""
    topic = side.topic("begins", 1)
    for version in versions("InitProducerId"):
        one = Producer(side, f"begin-{version}", version)
        yield "again", version, one.init(version)
        for timeout_ms in (-1, 0, 900_001):
            answer = one.init(version, transaction_timeout_ms=timeout_ms)
            yield f"timeout {timeout_ms}", version, answer
        if version >= 3:
            before = {"producer_id": one.producer_id, "producer_epoch": one.epoch}
            yield "with its epoch", version, one.init(version, **before)
            yield "with its epoch again", version, one.init(version, **before)
            for words, changes in {
                "of a stranger": {"producer_id": one.producer_id + 1000},
                "too new": {"producer_epoch": one.epoch + 7},
                "too old": {"producer_epoch": 0},
                "of no id": {"producer_id": -1},
                "of no epoch": {"producer_epoch": -1},
            }.items():
                now = {"producer_id": one.producer_id, "producer_epoch": one.epoch} | changes
                yield f"with an epoch {words}", version, one.init(version, **now)
        one.produce(12, topic, 0, 0)
        first = one.who()
        yield "while its predecessor's is open", version, one.init(version)
        if version >= 3:
            yield (
                "the predecessor again",
                version,
                one.init(
                    version,
                    producer_id=first["producer_id"],
                    producer_epoch=first["producer_epoch"],
                ),
            )
        one.produce(12, topic, 0, 0)
        one.end(5, True)
        yield "behind a commit", version, one.init(version)


@scenario
def ends_of_transactions(side: Side) -> Answers:
    """EndTxn in each state, by who it is and who it was."""
    topic = side.topic("ends", 1)
    for version in versions("EndTxn"):
        one = Producer(side, f"end-{version}")
        add = 12 if version >= 5 else 11

        def begin(one: Producer = one, add: int = add) -> None:
            if add < 12:
                one.add(3, {topic: [0]})
            one.produce(add, topic, 0, 0)

        def bad(state: str, one: Producer = one, version: int = version) -> Answers:
            for words, changes in {
                "of no id": {"transactional_id": ""},
                "of an unknown id": {"transactional_id": side.name("unknown")},
                "of a strange producer": {"producer_id": one.producer_id + 1000},
                "too new": {"producer_epoch": one.epoch + 1},
                "too old": {"producer_epoch": -1},
            }.items():
                for is_commit in (True, False):
                    answer = one.end(version, is_commit, **changes)
                    yield f"{state}: {'commit' if is_commit else 'abort'} {words}", version, answer

        yield from bad("empty")
        yield "empty: commit", version, one.end(version, True)
        yield "empty: abort", version, one.end(version, False)
        one.init()
        for is_commit in (True, False):
            word, other = ("commit", "abort") if is_commit else ("abort", "commit")
            begin()
            yield from bad(f"open, before the {word}")
            before = {"producer_epoch": one.epoch}
            yield f"open: {word}", version, one.end(version, is_commit)
            yield f"{word}, again", version, one.end(version, is_commit, **before)
            yield f"{word}, then {other}", version, one.end(version, not is_commit, **before)
            yield from bad(f"behind the {word}")
            if version >= 5:
                for wants in (True, False):
                    then = "commit" if wants else "abort"
                    answer = one.end(version, wants)
                    yield f"behind the {word}: {then} of nothing", version, answer
            one.init()


@scenario
def partitions_of_transactions(side: Side) -> Answers:
    """AddPartitionsToTxn: adding, verifying, and what is not there."""
    topic, second = side.topic("adds", 3), side.topic("adds-too", 1)
    find(side, "g", 0)
    for version in versions("AddPartitionsToTxn"):
        one = Producer(side, f"add-{version}")

        def add(one: Producer = one, version: int = version, **more: Any) -> Any:
            return one.add(version, {topic: [1]}, **more)

        yield "one", version, one.add(version, {topic: [0]})
        yield "again", version, one.add(version, {topic: [0]})
        yield "more", version, one.add(version, {topic: [0, 2], second: [0]})
        yield "none", version, one.add(version, {topic: []})
        yield "no topics", version, one.add(version, {})
        yield "unknown topic", version, one.add(version, {topic: [1], side.name("none"): [0]})
        yield "unknown partition", version, one.add(version, {topic: [1, 3, -1]})
        yield "of Kafka's own", version, one.add(version, {"__consumer_offsets": [0]})
        yield "no id", version, add(transactional_id="")
        yield "unknown id", version, add(transactional_id=side.name("unknown"))
        yield "strange producer", version, add(producer_id=one.producer_id + 1000)
        yield "new epoch", version, add(producer_epoch=one.epoch + 1)
        yield "old epoch", version, add(producer_epoch=-1)
        if version >= 4:
            verify = {"verify_only": True}
            yield "verified", version, one.add(version, {topic: [0, 2], second: [0]}, **verify)
            yield "not verified", version, one.add(version, {topic: [0, 1]}, **verify)
            yield "new epoch verified", version, add(producer_epoch=one.epoch + 1, **verify)
            yield "no id verified", version, add(transactional_id="", **verify)
            yield (
                "unknown id verified",
                version,
                add(transactional_id=side.name("unknown"), **verify),
            )
        one.end(5 if version >= 4 else 4, True)
        yield "behind a commit", version, add()


@scenario
def offsets_of_transactions(side: Side) -> Answers:
    """AddOffsetsToTxn and TxnOffsetCommit: what counts when, and for whom."""
    topic = side.topic("offsets", 2)
    group = side.name("group")
    find(side, group, 0)

    def commit(one: Producer, version: int, offset: int, **more: Any) -> Any:
        names = {"topic": topic, "partition": 0} | {
            name: more.pop(name) for name in ("topic", "partition") if name in more
        }
        row = {
            "partition_index": names["partition"],
            "committed_offset": offset,
            "committed_metadata": more.pop("committed_metadata", "m"),
        }
        body = one.who(group_id=group)
        body["topics"] = [{"name": names["topic"], "partitions": [row]}]
        body |= more
        found = patiently(lambda: side.ask("TxnOffsetCommit", version, body))
        return found["topics"][0]["partitions"][0].get("error_code", 0)

    def fetch(require_stable: bool) -> Any:
        topics = [{"name": topic, "partition_indexes": [0]}]
        body = {
            "groups": [{"group_id": group, "topics": topics}],
            "require_stable": require_stable,
        }
        return side.ask("OffsetFetch", 8, body)

    for version in versions("AddOffsetsToTxn"):
        one = Producer(side, f"add-offsets-{version}")

        def add(one: Producer = one, version: int = version, **more: Any) -> Any:
            return one.ask("AddOffsetsToTxn", version, one.who(group_id=group) | more)

        yield "added", version, add()
        yield "added again", version, add()
        yield "added, no group", version, add(group_id="")
        yield "added, no id", version, add(transactional_id="")
        yield "added, unknown id", version, add(transactional_id=side.name("unknown"))
        yield "added, strange producer", version, add(producer_id=one.producer_id + 1000)
        yield "added, new epoch", version, add(producer_epoch=one.epoch + 1)
        one.end(4, False)
    for version in versions("TxnOffsetCommit"):
        one = Producer(side, f"commits-{version}")
        end = 5 if version >= 5 else 4
        if version < 5:
            yield "not added", version, commit(one, version, 1)
        yield (
            "strange producer, before",
            version,
            commit(one, version, 1, producer_id=one.producer_id + 1000),
        )
        yield "new epoch, before", version, commit(one, version, 1, producer_epoch=one.epoch + 1)
        yield "unknown id", version, commit(one, version, 1, transactional_id=side.name("unknown"))
        if version < 5:
            one.ask("AddOffsetsToTxn", 3, one.who(group_id=group))
        yield "open", version, commit(one, version, 10 + version)
        for is_stable in (False, True):
            yield f"read, stable {is_stable}", version, fetch(is_stable)
        yield "no group", version, commit(one, version, 1, group_id="")
        yield "unknown topic", version, commit(one, version, 1, topic=side.name("none"))
        yield "unknown partition", version, commit(one, version, 1, partition=2)
        yield "long metadata", version, commit(one, version, 1, committed_metadata="x" * 4097)
        yield "new epoch", version, commit(one, version, 1, producer_epoch=one.epoch + 1)
        if version >= 3:
            yield "a generation", version, commit(one, version, 1, generation_id=1)
            yield "a member", version, commit(one, version, 1, member_id="m")
            yield "both", version, commit(one, version, 1, member_id="m", generation_id=1)
        yield "committed", version, one.end(end, True)
        wait_for_end(one)
        yield "read, committed", version, fetch(True)
        if version < 5:
            one.ask("AddOffsetsToTxn", 3, one.who(group_id=group))
        yield "open again", version, commit(one, version, 100 + version)
        one.end(end, False)
        wait_for_end(one)
        yield "read, aborted", version, fetch(True)


def wait_for_end(one: Producer) -> None:
    """Until its transaction is complete."""

    def has_ended() -> bool:
        found = one.side.ask("DescribeTransactions", 0, {"transactional_ids": [one.name]})
        return not found["transaction_states"][0]["transaction_state"].startswith("Prepare")

    wait_until(has_ended, "the end of a transaction", PATIENCE_S)


@scenario
def markers_of_strangers(side: Side) -> Answers:
    """WriteTxnMarkers, as an operator may send them."""
    topic = side.topic("markers", 2)
    for version in versions("WriteTxnMarkers"):
        one = Producer(side, f"marker-{version}")

        def write(
            topics: dict[str, list[int]],
            one: Producer = one,
            version: int = version,
            **more: Any,
        ) -> Any:
            marker = {
                "producer_id": one.producer_id,
                "producer_epoch": one.epoch,
                "transaction_result": False,
                "topics": [
                    {"name": name, "partition_indexes": indexes} for name, indexes in topics.items()
                ],
                "coordinator_epoch": 0,
            } | more
            found = side.ask("WriteTxnMarkers", version, {"markers": [marker]})
            for row in found.get("markers", []):
                row.pop("producer_id", None)  # it may be 0
                row.get("topics", []).sort(key=lambda each: each["name"])
            return found

        yield "nothing", version, side.ask("WriteTxnMarkers", version, {"markers": []})
        yield "unknown", version, write({topic: [2, -1], side.name("none"): [0]})
        yield "of nobody", version, write({topic: [0]}, producer_id=-1)
        yield "of no epoch", version, write({topic: [0]}, producer_epoch=-1)
        one.add(3, {topic: [0]})
        one.produce(11, topic, 0, 0)
        yield "old epoch", version, write({topic: [0]}, producer_epoch=one.epoch - 1)
        if version >= 2:
            for level in (0, 1, 2):
                yield (
                    f"this epoch, level {level}",
                    version,
                    write({topic: [0]}, transaction_version=level),
                )
        else:
            yield "this epoch", version, write({topic: [0]})
        yield "again", version, write({topic: [0]})
        yield "next epoch", version, write({topic: [0]}, producer_epoch=one.epoch + 1)
        yield (
            "old coordinator",
            version,
            write({topic: [0]}, producer_epoch=one.epoch + 1, coordinator_epoch=-1),
        )
        yield "behind it", version, one.produce(11, topic, 0, 1)


@scenario
def described_transactions(side: Side) -> Answers:
    """DescribeTransactions and ListTransactions."""
    topic = side.topic("described", 2)
    Producer(side, "before")  # the first producer id is 0, which an answer does not show
    one = Producer(side, "described")

    def describe(*names: str) -> Any:
        found = side.ask("DescribeTransactions", 0, {"transactional_ids": list(names)})
        for row in found.get("transaction_states", []):
            if row.get("transaction_start_time_ms", 0) > 0:
                row["transaction_start_time_ms"] = "some"
        return found

    def listed(version: int, **more: Any) -> Any:
        body = {"state_filters": [], "producer_id_filters": [one.producer_id]} | more
        return side.ask("ListTransactions", version, body)

    yield "empty", 0, describe(one.name)
    yield "unknown", 0, describe(side.name("unknown"), "")
    yield "none", 0, describe()
    one.produce(12, topic, 1, 0)
    yield "open", 0, describe(one.name)
    for version in versions("ListTransactions"):
        for words, filters in {
            "by id": {},
            "by two ids": {"producer_id_filters": [one.producer_id, 10**12]},
            "by a strange id": {"producer_id_filters": [10**12]},
            "open": {"state_filters": ["Ongoing", "Empty"]},
            "empty": {"state_filters": ["Empty"]},
            "of no state": {"state_filters": ["ongoing"]},
            "of some state": {"state_filters": ["Ongoing", "no state"]},
            "dead": {"state_filters": ["Dead", "PrepareEpochFence"]},
        }.items():
            yield f"listed, {words}", version, listed(version, **filters)
        for duration in (-2, -1, 100_000) if version >= 1 else ():
            yield f"listed, of {duration} ms", version, listed(version, duration_filter=duration)
        if version >= 2:
            for pattern in (one.name, ".*described", "escribe", "", "(", "[a"):
                words = pattern.removeprefix(side.prefix)
                answer = listed(version, transactional_id_pattern=pattern)
                yield f"listed, like '{words}'", version, answer
    one.end(5, True)
    wait_for_end(one)
    yield "committed", 0, describe(one.name)


@scenario
def transactional_batches(side: Side) -> Answers:
    """Produce: of strangers, outside of a transaction, and in all that adds and verifies."""
    topic = side.topic("batches", 3)
    for version in (9, 11, 12):
        one = Producer(side, f"batches-{version}")
        send = one.produce
        if version < 12:
            yield "not added", version, send(version, topic, 0, 0)
            one.add(3, {topic: [0]})
        yield (
            "first, of an unknown id",
            version,
            send(version, topic, 0, 0, transactional_id=side.name("unknown")),
        )
        yield "first, of no id", version, send(version, topic, 0, 0, transactional_id="")
        yield (
            "first, strange producer",
            version,
            send(version, topic, 0, 0, producer_id=one.producer_id + 1000),
        )
        yield "first, new epoch", version, send(version, topic, 0, 0, producer_epoch=one.epoch + 1)
        yield "first", version, send(version, topic, 0, 0)
        yield "second", version, send(version, topic, 0, 1)
        yield "second again", version, send(version, topic, 0, 1)
        yield "gap", version, send(version, topic, 0, 5)
        yield (
            "of an unknown id",
            version,
            send(version, topic, 0, 2, transactional_id=side.name("unknown")),
        )
        yield "new epoch", version, send(version, topic, 0, 0, producer_epoch=one.epoch + 1)
        end = 5 if version >= 12 else 4
        before = one.epoch
        yield "committed", version, one.end(end, True)
        wait_for_end(one)
        if version >= 12:
            yield (
                "behind the end, old epoch",
                version,
                send(version, topic, 0, 2, producer_epoch=before),
            )
        else:
            yield "behind the end", version, send(version, topic, 0, 3)


@scenario
def transactions_read(side: Side) -> Answers:
    """What readers see of a log with a committed, an aborted and an open transaction.

    Offsets: 0 committed, 1 its marker, 2 aborted, 3 its marker, 4 open, 5 plain.
    """
    topic = side.topic("read", 1)
    for short, committed in (("commits", True), ("aborts", False), ("is open", None)):
        one = Producer(side, f"read-{short}")
        one.add(4, {topic: [0]})
        one.produce(11, topic, 0, 0)
        if committed is not None:
            one.end(4, committed)
            wait_for_end(one)
    side.ask("Produce", 9, produce_body(topic, batch_of(b"plain"), 0))
    for level in (0, 1):
        for version in versions("Fetch"):
            for offset in (0, 1, 2, 3, 4, 5):
                yield (
                    f"fetch {offset}, level {level}",
                    version,
                    seen(side, topic, version, offset, level),
                )
        for version in versions("ListOffsets"):
            if version < 2:
                continue
            for timestamp in (-1, -2):
                row = {"partition_index": 0, "timestamp": timestamp}
                body = {"replica_id": -1, "isolation_level": level}
                body["topics"] = [{"name": topic, "partitions": [row]}]
                yield (
                    f"list {timestamp}, level {level}",
                    version,
                    side.ask("ListOffsets", version, body),
                )
    with RawClient(side.address) as client:
        body = {"topics": [{"name": topic, "partition_indexes": [0]}]}
        (found,) = client.ask("DescribeProducers", 0, body)["topics"][0]["partitions"]
    rows = sorted(found["active_producers"], key=lambda row: row["producer_id"])
    names = ("producer_epoch", "last_sequence", "coordinator_epoch", "current_txn_start_offset")
    yield "producers", 0, [[row[name] for name in names] for row in rows]


def seen(side: Side, topic: str, version: int, offset: int, level: int) -> Any:
    """Of one Fetch: ends, offsets of the batches, first offsets of aborted transactions."""
    body = fetch_body(topic, offset) | {"isolation_level": level}
    if version < 12:
        body["topics"][0]["partitions"][0].pop("last_fetched_epoch")
    if version < 9:
        body["topics"][0]["partitions"][0].pop("current_leader_epoch")
    if version < 7:
        body.pop("session_id"), body.pop("session_epoch")
    if version < 5:
        body["topics"][0]["partitions"][0].pop("log_start_offset", None)
    if version >= 15:
        body.pop("replica_id")
    body = by_id(body, side.topics[topic], version)
    with RawClient(side.address) as client:
        answer = client.ask("Fetch", version, body)
    (row,) = answer["responses"][0]["partitions"]
    aborted = row["aborted_transactions"]
    return {
        "high_watermark": row["high_watermark"],
        "last_stable_offset": row["last_stable_offset"],
        "batches": [header[0] for _, header in iterate_batches(bytes(row["records"] or b""))],
        "aborted": aborted and [one["first_offset"] for one in aborted],
    }
