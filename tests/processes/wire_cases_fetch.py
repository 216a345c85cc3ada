"""Fetch with and without sessions, ListOffsets and OffsetForLeaderEpoch, asked of both brokers."""

from collections.abc import Callable
from typing import Any

from shmbroker.records.batch import encode_batch
from tests.processes.wire_cases import STRANGER, TIME, ZERO, Answers, scenario, versions
from tests.processes.wire_cases_produce import GOOD, by_id
from tests.processes.wire_side import Side
from tests.support.raw_client import RawClient, batch_of, fetch_body, produce_body
from tests.support.waiting import wait_until

# ── Fetch ───────────────────────────────────────────────────────────────────────────────────────


@scenario
def fetch(side: Side) -> Answers:
    """Offsets, limits, epochs, isolation and topics."""
    topic = side.topic("fetch", 4)
    topic_id = side.topics[topic]
    for index, count in ((0, 3), (2, 1)):
        for which in range(count):
            values = [b"%d-%d-%d" % (index, which, value) + bytes(200) for value in range(10)]
            batch = batch_of(*values, timestamp=TIME + which)
            side.ask("Produce", 9, produce_body(topic, batch, index))

    def ask(version: int, *partitions: dict[str, Any] | int, **more: Any) -> Any:
        body = fetch_body(topic, 0)
        row = body["topics"][0]["partitions"][0]
        if version < 12:
            row.pop("last_fetched_epoch")
        rows = [
            row | (asked if isinstance(asked, dict) else {"fetch_offset": asked})
            for asked in partitions
        ]
        body["topics"][0]["partitions"] = rows
        if version < 9:
            for row in rows:
                row.pop("current_leader_epoch", None)
        if version < 7:
            body.pop("session_id"), body.pop("session_epoch")
        if version >= 15:
            body.pop("replica_id")
        topics = more.pop("topics", None)
        body = by_id(body, topic_id, version)
        body |= more
        if topics is not None:
            body["topics"] = topics
        return side.ask("Fetch", version, body)

    for version in versions("Fetch"):
        for name, offset in (
            ("start", 0), ("second batch", 10), ("mid batch", 15), ("last", 29), ("end", 30),
            ("behind the end", 31), ("negative", -1), ("far", 2**62),
        ):  # fmt: skip
            yield f"offset {name}", version, ask(version, offset)
        yield "empty partition", version, ask(version, {"partition": 1})
        for index in (4, -1):
            yield f"partition {index}", version, ask(version, {"partition": index})
        yield "max bytes 1", version, ask(version, 0, max_bytes=1)
        yield "max bytes 0", version, ask(version, 0, max_bytes=0)
        yield "max bytes negative", version, ask(version, 0, max_bytes=-1)
        for limit in (-1, 0, 1, 100, 3000, 5000):
            answer = ask(version, {"partition_max_bytes": limit})
            yield f"partition max bytes {limit}", version, answer
        yield "two partitions", version, ask(version, {"partition": 0}, {"partition": 2})
        yield (
            "two partitions, max bytes 1",
            version,
            ask(version, {"partition": 2}, {"partition": 0}, max_bytes=1),
        )
        yield (
            "two partitions, max bytes 4000",
            version,
            ask(version, {"partition": 2}, {"partition": 0}, max_bytes=4000),
        )
        yield (
            "empty partition first, max bytes 1",
            version,
            ask(version, {"partition": 1}, {"partition": 0}, max_bytes=1),
        )
        yield (
            "two partitions, first with max bytes 1",
            version,
            ask(version, {"partition_max_bytes": 1}, {"partition": 2, "partition_max_bytes": 1}),
        )
        yield "one partition twice", version, ask(version, 0, 10)
        yield "bad beside good", version, ask(version, 31, {"partition": 2}, {"partition": 9})
        yield (
            "long wait, error of the log",
            version,
            ask(version, 31, max_wait_ms=20_000, min_bytes=1 << 20),
        )
        yield (
            "long wait, nothing valid",
            version,
            ask(version, {"partition": 9}, max_wait_ms=20_000, min_bytes=1 << 20),
        )
        yield "long wait, min bytes 0", version, ask(version, 30, max_wait_ms=20_000, min_bytes=0)
        yield "long wait, enough bytes", version, ask(version, 0, max_wait_ms=20_000, min_bytes=100)
        yield (
            "short wait, too few bytes",
            version,
            ask(version, 0, max_wait_ms=20, min_bytes=1 << 20),
        )
        yield (
            "short wait, unknown beside valid",
            version,
            ask(version, {"partition": 9}, 30, max_wait_ms=20),
        )
        yield "wait negative", version, ask(version, 30, max_wait_ms=-1)
        yield "min bytes negative", version, ask(version, 30, max_wait_ms=20, min_bytes=-1)
        yield "no topics", version, ask(version, topics=[])
        yield "no partitions", version, ask(version)
        for isolation in (1, 2, -1):
            answer = ask(version, 0, isolation_level=isolation)
            yield f"isolation {isolation}", version, answer
        unknown = fetch_body(side.name("unknown"), 0)["topics"]
        if version < 12:
            unknown[0]["partitions"][0].pop("last_fetched_epoch")
        if version < 9:
            unknown[0]["partitions"][0].pop("current_leader_epoch")
        if version >= 13:
            by_id({"topics": unknown}, STRANGER, version)
        yield "unknown topic", version, ask(version, topics=unknown)
        if version >= 13:
            zero = [unknown[0] | {"topic_id": ZERO}]
            yield "zero id", version, ask(version, topics=zero)
        if version >= 9:
            for epoch in (0, 5, -2):
                answer = ask(version, {"current_leader_epoch": epoch})
                yield f"leader epoch {epoch}", version, answer
            answer = ask(version, {"current_leader_epoch": 5, "fetch_offset": 99})
            yield "leader epoch 5, behind the end", version, answer
        if version >= 12:
            for epoch, offset in ((0, 10), (0, 30), (0, 31), (3, 10), (3, 31), (-2, 0)):
                answer = ask(version, {"last_fetched_epoch": epoch, "fetch_offset": offset})
                yield f"last fetched epoch {epoch} at {offset}", version, answer
        if version >= 7:
            for session, epoch in ((123, 0), (123, -1), (123, 1), (0, 1), (123, -5), (0, -5)):
                answer = ask(version, 0, session_id=session, session_epoch=epoch)
                yield f"session {session} epoch {epoch}", version, answer
            yield "session asked for", version, ask(version, 0, session_id=0, session_epoch=0)
        for replica in (-2, 99):
            named = {"replica_id": replica}
            if version >= 15:
                named = {"replica_state": {"replica_id": replica, "replica_epoch": -1}}
            yield f"replica {replica}", version, ask(version, 0, **named)
        if version >= 11:
            yield "rack", version, ask(version, 0, rack_id="somewhere")


@scenario
def fetch_sessions(side: Side) -> Answers:
    """One connection after the other: what a session's client is told, and when it has none."""
    topic = side.topic("sessions", 3)
    for index, count in ((0, 3), (2, 1)):
        for which in range(count):
            values = [b"%d-%d-%d" % (index, which, value) for value in range(10)]
            batch = batch_of(*values, timestamp=TIME + which)
            side.ask("Produce", 9, produce_body(topic, batch, index))
    for version in range(7, 19):
        with RawClient(side.address) as client:
            talk = FetchTalk(side, client, version, topic)
            ask = talk.ask
            yield "full", version, ask({0: 30, 1: 0, 2: 0})
            yield "records not taken", version, ask()
            yield "records taken", version, ask({2: 10})
            yield "nothing new", version, ask()
            yield "nothing new, waiting", version, ask(max_wait_ms=20)
            for epoch in (talk.epoch - 1, talk.epoch + 1, -2, 2**31 - 1):
                name = f"epoch {epoch}"
                yield name, version, ask(epoch=epoch)
            yield "after wrong epochs", version, ask()
            yield "stranger", version, ask(session=talk.session ^ 1 << 20)
            yield "behind the end", version, ask({0: 99})
            yield "still behind the end", version, ask()
            yield "back in range", version, ask({0: 30})
            yield "quiet after an error", version, ask()
            yield "unknown partition", version, ask({9: 0})
            yield "still unknown", version, ask()
            yield "forgotten", version, ask(forgotten=[9])
            yield "added and forgotten", version, ask({9: 0}, forgotten=[9])
            yield "forgotten and not there", version, ask(forgotten=[9, 7])
            yield "two with records, room for one", version, ask({2: 0, 0: 0}, max_bytes=1)
            for turn in ("second", "third", "fourth"):
                yield f"the {turn} turn", version, ask(max_bytes=1)
            yield "by name and id", version, ask(as_version=12 if version > 12 else 13)
            yield "after the other version", version, ask(max_bytes=1)
            yield "from the start again", version, ask({0: 30}, epoch=0)
            yield "with the old id", version, ask(session=talk.before)
            yield "with the new id", version, ask()
            yield "closed", version, ask({1: 0}, epoch=-1)
            yield "after its end", version, ask()
            yield "one partition", version, ask({1: 0}, epoch=0, session=0)
            yield "none left", version, ask(forgotten=[1])
            yield "after none were left", version, ask()
            yield "nothing at all", version, ask({}, epoch=0, session=0)
            yield "after nothing at all", version, ask()
            yield "only unknown ones", version, ask({7: 0}, epoch=0, session=0)
            yield "still only unknown ones", version, ask(max_wait_ms=20_000)
    for version in (12, 13):
        name = side.topic(f"sessions-gone-{version}")
        with RawClient(side.address) as client:
            talk = FetchTalk(side, client, version, name)
            yield "full, of a topic that goes", version, talk.ask({0: 0})
            body = {"timeout_ms": 5000, "topics": [{"name": name}]}
            client.ask("DeleteTopics", 6, body)
            yield "gone", version, talk.until(lambda row: row["error_code"] != 0)
            if version < 13:
                client.create_topic(name)
                yield "made anew", version, talk.until(lambda row: row["error_code"] == 0)
                yield "quiet again", version, talk.ask()
            else:
                client.create_topic(name)
                # UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID
                answer = talk.until(lambda row: row["error_code"] in (100, 103))
                yield "another of its name", version, answer


class FetchTalk:
    """A client with a fetch session about one topic."""

    def __init__(self, side: Side, client: RawClient, version: int, topic: str) -> None:
        self.side = side
        self.client = client
        self.version = version
        self.topic = topic
        self.session = self.before = self.epoch = 0

    def ask(
        self,
        offsets: dict[int, int] | None = None,
        *,
        epoch: int | None = None,
        session: int | None = None,
        forgotten: Any = (),
        as_version: int = 0,
        **more: Any,
    ) -> Any:
        return self.side.comparable(
            "Fetch", as_version or self.version,
            self.answer(offsets or {}, epoch, session, forgotten, as_version, more),
        )  # fmt: skip

    def answer(
        self,
        offsets: dict[int, int],
        epoch: int | None,
        session: int | None,
        forgotten: Any,
        as_version: int,
        more: dict[str, Any],
    ) -> Any:
        version = as_version or self.version
        body = fetch_body(self.topic, 0)
        row = body["topics"][0]["partitions"][0]
        if version < 12:
            row.pop("last_fetched_epoch")
        if version < 9:
            row.pop("current_leader_epoch")
        if version >= 15:
            body.pop("replica_id")
        name = (
            {"topic_id": self.side.topics[self.topic]} if version >= 13 else {"topic": self.topic}
        )
        rows = [row | {"partition": index, "fetch_offset": at} for index, at in offsets.items()]
        body |= {
            "topics": [name | {"partitions": rows}] if rows else [],
            "forgotten_topics_data": [name | {"partitions": list(forgotten)}] if forgotten else [],
            "session_id": self.session if session is None else session,
            "session_epoch": self.epoch if epoch is None else epoch,
        }
        answer = self.client.ask("Fetch", version, body | more)
        if epoch == 0 or not self.session:
            self.before, self.session, self.epoch = self.session, answer["session_id"], 1
        elif answer["error_code"] == 0 and epoch is None:
            self.epoch += 1
        return answer

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> Any:
        """Ask until the answer has a partition that is as expected."""

        def expected() -> dict[str, Any] | None:
            answer = self.answer({}, None, None, (), 0, {})
            rows = [row for topic in answer["responses"] for row in topic["partitions"]]
            is_it = rows and condition(rows[0]) and rows[0]["error_code"] != 6
            return answer if is_it else None

        answer = wait_until(expected, "a partition that is as expected")
        return self.side.comparable("Fetch", self.version, answer)


# ── ListOffsets, OffsetForLeaderEpoch ───────────────────────────────────────────────────────────


@scenario
def list_offsets(side: Side) -> Answers:
    topic = side.topic("offsets", 3)
    for step in range(3):
        batch = encode_batch(
            [(TIME + 100 * step + 10 * which, None, b"v", []) for which in range(5)]
        )
        side.ask("Produce", 9, produce_body(topic, batch, 0))
    falling = encode_batch([(TIME - 10 * which, None, b"v", []) for which in range(5)])
    side.ask("Produce", 9, produce_body(topic, falling, 2))

    def ask(version: int, *rows: dict[str, Any], name: str = topic, **more: Any) -> Any:
        asked = [{"partition_index": 0, "timestamp": -1} | row for row in rows]
        if version < 4:
            for row in asked:
                row.pop("current_leader_epoch", None)
        body = {"replica_id": -1, "topics": [{"name": name, "partitions": asked}]} | more
        return side.ask("ListOffsets", version, body)

    for version in versions("ListOffsets"):
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, -8, -(2**63)):
            yield f"timestamp {timestamp}", version, ask(version, {"timestamp": timestamp})
        for timestamp in (-1, -2, -3, -4, -5, -6):
            answer = ask(version, {"timestamp": timestamp, "partition_index": 1})
            yield f"timestamp {timestamp} of an empty log", version, answer
        for name, timestamp in (
            ("0", 0), ("the first's", TIME), ("in the first batch", TIME + 15),
            ("in the second batch", TIME + 110), ("between batches", TIME + 50),
            ("the last's", TIME + 240), ("after the last", TIME + 241), ("most", 2**63 - 1),
        ):  # fmt: skip
            yield f"timestamp {name}", version, ask(version, {"timestamp": timestamp})
        answer = ask(version, {"timestamp": TIME - 25, "partition_index": 2})
        yield "timestamp in a falling batch", version, answer
        answer = ask(version, {"timestamp": -3, "partition_index": 2})
        yield "max timestamp of a falling batch", version, answer
        answer = ask(version, {"timestamp": TIME, "partition_index": 1})
        yield "timestamp in an empty log", version, answer
        for index in (3, -1):
            yield f"partition {index}", version, ask(version, {"partition_index": index})
        yield "unknown topic", version, ask(version, {}, name=side.name("unknown"))
        yield "name empty", version, ask(version, {}, name="")
        yield (
            "one partition twice",
            version,
            ask(version, {}, {"timestamp": -2}, {"partition_index": 1}),
        )
        yield "no topics", version, ask(version, topics=[])
        yield "no partitions", version, ask(version)
        for replica in (-2, -3, 1, 99):
            yield f"replica {replica}", version, ask(version, {}, replica_id=replica)
        for isolation in (1, 2, -1) if version >= 2 else ():
            answer = ask(version, {}, isolation_level=isolation)
            yield f"isolation {isolation}", version, answer
        for epoch in (0, 5, -2) if version >= 4 else ():
            yield f"leader epoch {epoch}", version, ask(version, {"current_leader_epoch": epoch})
        if version >= 10:
            yield "timeout negative", version, ask(version, {}, timeout_ms=-1)
        row = {"partition_index": 0, "timestamp": -1}
        twice = [{"name": topic, "partitions": [row]}, {"name": topic, "partitions": [row]}]
        yield "one topic twice", version, ask(version, topics=twice)


@scenario
def offset_for_leader_epoch(side: Side) -> Answers:
    topic = side.topic("epochs", 2)
    side.ask("Produce", 9, produce_body(topic, GOOD))

    def ask(version: int, name: str = topic, replica: int = -1, **row: int) -> Any:
        asked = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1} | row
        body: dict[str, Any] = {"topics": [{"topic": name, "partitions": [asked]}]}
        if version >= 3:
            body["replica_id"] = replica
        return side.ask("OffsetForLeaderEpoch", version, body)

    for version in versions("OffsetForLeaderEpoch"):
        for epoch in (0, 1, 5, -1, -2):
            yield f"epoch {epoch}", version, ask(version, leader_epoch=epoch)
            answer = ask(version, leader_epoch=epoch, partition=1)
            yield f"epoch {epoch} of an empty log", version, answer
        for epoch in (0, 5, -2):
            answer = ask(version, current_leader_epoch=epoch)
            yield f"leader epoch {epoch}", version, answer
        for index in (2, -1):
            yield f"partition {index}", version, ask(version, partition=index)
        yield "unknown topic", version, ask(version, side.name("unknown"))
        yield "name empty", version, ask(version, "")
        for replica in (-2, 1, 99) if version >= 3 else ():
            yield f"replica {replica}", version, ask(version, replica=replica)
        yield "no topics", version, side.ask("OffsetForLeaderEpoch", version, {})
        row = {"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}
        for word, rows in (("no partitions", []), ("one partition twice", [row, row])):
            body = {"topics": [{"topic": topic, "partitions": rows}]}
            yield word, version, side.ask("OffsetForLeaderEpoch", version, body)
        body = {"topics": [{"topic": topic, "partitions": [row]}] * 2}
        yield "one topic twice", version, side.ask("OffsetForLeaderEpoch", version, body)
