"""What logs hold, and who writes to them, asked of both brokers: InitProducerId, DeleteRecords,
DescribeProducers, DescribeLogDirs."""

from typing import Any

from tests.processes.wire_cases import BAD_NAMES, TIME, Answers, scenario, versions
from tests.processes.wire_cases_produce import GOOD, sequenced
from tests.processes.wire_side import Side
from tests.support.raw_client import batch_of, fetch_body, produce_body
from tests.support.waiting import wait_until

# ── InitProducerId, DescribeLogDirs ─────────────────────────────────────────────────────────────


@scenario
def init_producer_id(side: Side) -> Answers:
    def ask(version: int, **more: Any) -> Any:
        body = {"transactional_id": None, "transaction_timeout_ms": 60_000}
        for _ in range(500):  # 14 until the first block of ids is there
            answer = side.ask("InitProducerId", version, body | more)
            if answer.get("error_code") != 14:
                break
        return answer

    for version in versions("InitProducerId"):
        yield "idempotent", version, ask(version)
        yield "timeout 0", version, ask(version, transaction_timeout_ms=0)
        yield "timeout negative", version, ask(version, transaction_timeout_ms=-1)
        yield "empty transactional id", version, ask(version, transactional_id="")
        if version >= 3:
            for producer_id, epoch in ((5, 0), (5, 3), (5, -1), (-1, 0), (-2, -2), (-2, -1)):
                answer = ask(version, producer_id=producer_id, producer_epoch=epoch)
                yield f"producer id {producer_id} epoch {epoch}", version, answer


# ── DeleteRecords, DescribeProducers ────────────────────────────────────────────────────────────


@scenario
def delete_records(side: Side) -> Answers:
    """Where logs begin, and what is read then; one partition for each version."""
    topic = side.topic("deletes", 4)
    compacted = side.topic("deletes-compacted", cleanup_policy="compact")
    both = side.topic("deletes-both", cleanup_policy="compact,delete")
    for index in range(3):
        for which in range(3):
            values = [b"%d" % value for value in range(10)]
            batch = batch_of(*values, timestamp=TIME + which)
            side.ask("Produce", 9, produce_body(topic, batch, index))
    wait_until(
        lambda: "error_code" not in side.ask("FindCoordinator", 1, {"key": "g", "key_type": 0}),
        "__consumer_offsets",
    )

    for version in versions("DeleteRecords"):

        def ask(*rows: tuple[int, int], name: str = topic, version: int = version) -> Any:
            rows_of_one = [{"partition_index": index, "offset": offset} for index, offset in rows]
            topics = [{"name": name, "partitions": rows_of_one}]
            return side.ask("DeleteRecords", version, {"timeout_ms": 5000, "topics": topics})

        def to(offset: int, version: int = version) -> Any:
            return anywhere(ask((version, offset))["topics"][0])

        def first(timestamp: int, version: int = version) -> Any:
            row = {"partition_index": version, "timestamp": timestamp}
            body = {"replica_id": -1, "topics": [{"name": topic, "partitions": [row]}]}
            return anywhere(side.ask("ListOffsets", 11, body)["topics"][0])

        def read(offset: int, version: int = version) -> Any:
            found = side.ask("Fetch", 12, fetch_body(topic, offset, version))
            return anywhere(found["responses"][0])

        for offset in (-2, -(2**63), 31, 2**63 - 1):
            yield f"to {offset}", version, to(offset)
        for step in ("0", "15", "15 again", "5 from 15", "20", "everything"):
            yield f"to {step}", version, to(-1 if step == "everything" else int(step.split()[0]))
            for at in (0, 14, 15, 20, 30) if step in ("15", "20", "everything") else ():
                yield f"read {at} after {step}", version, read(at)
            for timestamp in (-1, -2, -3, -4, -5, -6, 0, TIME, TIME + 1, TIME + 2):
                yield f"timestamp {timestamp} after {step}", version, first(timestamp)
        yield "empty log", version, ask((3, -1))
        yield "empty log to 0", version, ask((3, 0))
        yield "empty log to 1", version, ask((3, 1))
        for index in (4, -1):
            yield f"partition {index}", version, ask((index, 0))
        yield "good beside bad", version, ask((3, 0), (9, 0), (3, 1))
        yield "unknown topic", version, ask((0, 0), name=side.name("unknown"))
        for name, bad in BAD_NAMES.items():
            yield f"name {name}", version, ask((0, 0), name=bad)
        yield "compacted", version, ask((0, 0), name=compacted)
        yield "compacted and deleted", version, ask((0, 0), name=both)
        yield "internal", version, ask((0, 0), name="__consumer_offsets")
        yield "no partitions", version, ask()
        body = {"timeout_ms": -1, "topics": []}
        yield "no topics", version, side.ask("DeleteRecords", version, body)


def anywhere(topic: dict[str, Any]) -> Any:
    """What is said of its only partition, whichever it is."""
    row = topic["partitions"][0]
    row.pop("partition_index", None)
    return row


@scenario
def describe_producers(side: Side) -> Answers:
    topic = side.topic("producers", 4)
    for index, batch in (
        (0, sequenced(0, 3, producer_id=4_000_300)),
        (0, sequenced(3, 2, producer_id=4_000_300)),
        (1, sequenced(2**31 - 1, 1, producer_id=4_000_301)),
        (2, sequenced(0, 1, producer_id=4_000_302)),
        (2, sequenced(0, 2, epoch=3, producer_id=4_000_302)),
        (3, GOOD),
    ):
        side.ask("Produce", 9, produce_body(topic, batch, index))

    def ask(name: str, *indexes: int) -> Any:
        body = {"topics": [{"name": name, "partition_indexes": list(indexes)}]}
        return side.ask("DescribeProducers", 0, body)

    yield "all", 0, ask(topic, 0, 1, 2, 3)
    side.ask("Produce", 9, produce_body(topic, sequenced(0, 2, producer_id=4_000_303), 1))
    found = ask(topic, 1)
    for row in found["topics"][0]["partitions"]:
        row["active_producers"].sort(key=lambda each: each["last_sequence"])
    yield "two of them", 0, found
    yield "one twice", 0, ask(topic, 0, 0)
    for index in (4, -1):
        yield f"partition {index}", 0, ask(topic, index)
    yield "good beside bad", 0, ask(topic, 9, 0)
    yield "unknown topic", 0, ask(side.name("unknown"), 0)
    for name, bad in BAD_NAMES.items():
        yield f"name {name}", 0, ask(bad, 0)
    yield "no partitions", 0, ask(topic)
    yield "no topics", 0, side.ask("DescribeProducers", 0, {"topics": []})
    rows = [{"name": topic, "partition_indexes": [0]}, {"name": topic, "partition_indexes": [1]}]
    yield "topic twice", 0, side.ask("DescribeProducers", 0, {"topics": rows})
    row = {"partition_index": 0, "offset": -1}
    body = {"timeout_ms": 5000, "topics": [{"name": topic, "partitions": [row]}]}
    side.ask("DeleteRecords", 2, body)
    yield "after its records", 0, ask(topic, 0)


@scenario
def describe_log_dirs(side: Side) -> Answers:
    topic = side.topic("sizes", 3)
    for index in (0, 0, 2):
        side.ask("Produce", 9, produce_body(topic, GOOD, index))

    def ask(version: int, topics: Any) -> Any:
        rows = topics and [{"topic": name, "partitions": indexes} for name, indexes in topics]
        answer = side.ask("DescribeLogDirs", version, {"topics": rows})
        for result in answer.get("results", ()):
            own = [row for row in result.get("topics", ()) if row["name"] in ("sizes", "unknown")]
            for row in own:
                row.get("partitions", []).sort(key=lambda each: each.get("partition_index", 0))
            result["topics"] = own
        return answer

    for version in versions("DescribeLogDirs"):
        yield "all", version, ask(version, None)
        yield "one topic", version, ask(version, [(topic, [0, 1, 2])])
        yield "one partition", version, ask(version, [(topic, [2])])
        yield "unknown partition", version, ask(version, [(topic, [7])])
        yield "unknown topic", version, ask(version, [(side.name("unknown"), [0])])
        yield "no topics", version, ask(version, [])
        yield "no partitions", version, ask(version, [(topic, [])])
        yield "one topic twice", version, ask(version, [(topic, [0]), (topic, [1])])
        yield "one partition twice", version, ask(version, [(topic, [0, 0])])
