"""The three things that the console can change, where `shmbroker.console.writes` allows it.

    produce         one record
    reset-offsets   committed offsets of a group without members, in one topic
    delete-topic    a topic, for good

Rules of this file:
* `access` has judged the request. Besides, each change names its object twice (`confirm`), so that
  a page that is a step behind changes nothing.
* A change is asked for once, never again by itself. The brokers judge it as any client's.
* A body that is not as it must be is a ValueError; a cluster that refuses a ClusterFault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shmbroker import clock
from shmbroker.client.addresses import Address
from shmbroker.client.cluster import Cluster, Topic
from shmbroker.client.faults import ClusterFault, refuse
from shmbroker.client.reader.asking import EARLIEST, LATEST
from shmbroker.console.topic_reader import ANSWER_S, CLIENT_ID, TopicReader
from shmbroker.metadata.topic_names import INTERNAL_TOPICS
from shmbroker.records.batch import encode_batch
from shmbroker.wire.api_keys import (
    DELETE_TOPICS,
    FIND_COORDINATOR,
    METADATA,
    OFFSET_COMMIT,
    PRODUCE,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message

_VERSIONS = {METADATA: 9, PRODUCE: 9, DELETE_TOPICS: 5, FIND_COORDINATOR: 2, OFFSET_COMMIT: 8}
RECORD_BYTES_MAX = 1 << 20
TIMEOUT_MS = 10_000
HEADERS_MAX = 100
_WHERES = ("earliest", "latest", "time", "offset")

Body = Mapping[str, object]


class Writes:
    """Carries changes out; for any thread."""

    def __init__(self, bootstrap: Sequence[Address]) -> None:
        self._bootstrap = list(bootstrap)
        self.by_path: dict[str, Callable[[Body], object]] = {
            "/api/write/produce": self.produce,
            "/api/write/reset-offsets": self.reset_offsets,
            "/api/write/delete-topic": self.delete_topic,
        }

    def _cluster(self) -> Cluster:
        return Cluster(self._bootstrap, CLIENT_ID, ANSWER_S, _VERSIONS)

    def produce(self, body: Body) -> object:
        """{topic, confirm, partition or null, key, value, headers: [[name, value]]}: texts, or null
        for none. Without a partition the key says which, as Kafka's producers have it."""
        name = _confirmed(body, "topic")
        key, value = _bytes(body, "key"), _bytes(body, "value")
        headers = _headers(body.get("headers"))
        with self._cluster() as cluster:
            topic = _find(cluster, name)
            partition = body.get("partition")
            if partition is None:
                partition = 0 if key is None else (murmur2(key) & 0x7FFFFFFF) % len(topic.leaders)
            if not isinstance(partition, int) or partition not in topic.partitions:
                raise ValueError(f"topic {name} has no partition {partition!r}")
            leader = topic.leader_of(partition)
            if leader < 0:
                raise ClusterFault(f"{name}-{partition} has no leader")
            batch = encode_batch([(clock.now_ms(), key, value, headers)])
            rows = [{"index": partition, "records": batch}]
            asked: Message = {
                "transactional_id": None,
                "acks": -1,
                "timeout_ms": TIMEOUT_MS,
                "topic_data": [{"name": name, "partition_data": rows}],
            }
            answer = cluster.ask_broker(leader, PRODUCE, asked)
        row = answer["responses"][0]["partition_responses"][0]
        refuse(row["error_code"], f"a record for {name}-{partition}", row.get("error_message"))
        return {"partition": partition, "offset": row["base_offset"]}

    def reset_offsets(self, body: Body) -> object:
        """{group, confirm, topic, to, value, execute}: where each partition's offset goes; carried
        out if `execute` is true. to: earliest, latest, time (ms) or offset, with the value."""
        group, name = _confirmed(body, "group"), _text(body, "topic")
        to, value = body.get("to"), body.get("value")
        if to not in _WHERES:
            raise ValueError(f"to is one of {', '.join(_WHERES)}")
        if to in ("time", "offset") and not (isinstance(value, int) and 0 <= value < 1 << 63):
            raise ValueError(f"{to} needs a value that is a number")
        with TopicReader(self._bootstrap, name, None, False) as reader:
            if len(reader.partitions) < len(reader.topic.leaders):
                raise ClusterFault("the topic has too many partitions for this: use the command")
            starts, ends = reader.offsets(EARLIEST), reader.offsets(LATEST)
            since = reader.offsets(value) if to == "time" and isinstance(value, int) else {}
        plan = {}
        for partition, start in starts.items():
            end = ends[partition]
            if to == "earliest":
                offset = start
            elif to == "latest":
                offset = end
            elif to == "time":
                offset = end if since[partition] < 0 else since[partition]
            else:
                assert isinstance(value, int)
                offset = min(max(value, start), end)
            plan[partition] = offset
        if body.get("execute") is True:
            self._commit(group, name, plan)
        return {"plan": [{"partition": one, "offset": offset} for one, offset in plan.items()]}

    def _commit(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        rows = [
            {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_leader_epoch": -1,
                "committed_metadata": "",
            }
            for partition, offset in offsets.items()
        ]
        body: Message = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": topic, "partitions": rows}],
        }
        with self._cluster() as cluster:
            cluster.describe([], creates=False)
            found = cluster.ask_any(FIND_COORDINATOR, {"key": group, "key_type": 0})
            refuse(found["error_code"], f"coordinator of group {group}")
            answer = cluster.ask_broker(found["node_id"], OFFSET_COMMIT, body)
        for row in answer["topics"][0]["partitions"]:
            what = f"offset of group {group} in {topic}-{row['partition_index']}"
            refuse(row["error_code"], what)

    def delete_topic(self, body: Body) -> object:
        """Delete a topic. body: {topic, confirm}."""
        name = _confirmed(body, "topic")
        if name in INTERNAL_TOPICS:
            raise ValueError(f"{name} belongs to the broker")
        with self._cluster() as cluster:
            asked: Message = {"topic_names": [name], "timeout_ms": TIMEOUT_MS}
            answer = cluster.ask_any(DELETE_TOPICS, asked)
        row = answer["responses"][0]
        refuse(row["error_code"], f"deletion of {name}", row.get("error_message"))
        return {"topic": name}


def _find(cluster: Cluster, name: str) -> Topic:
    ((topic, error, _),) = cluster.describe([name], creates=False)
    refuse(error, f"topic {name}")
    return topic


def _text(body: Body, name: str) -> str:
    text = body.get(name)
    if not isinstance(text, str) or not text:
        raise ValueError(f"{name} is missing")
    return text


def _confirmed(body: Body, name: str) -> str:
    text = _text(body, name)
    if body.get("confirm") != text:
        raise ValueError(f"confirm must repeat {name}")
    return text


def _bytes(body: Body, name: str) -> bytes | None:
    text = body.get(name)
    if text is None:
        return None
    if not isinstance(text, str):
        raise ValueError(f"{name} is text or null")
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{name} is no text") from None
    if len(data) > RECORD_BYTES_MAX:
        raise ValueError(f"{name} has more than {RECORD_BYTES_MAX} bytes")
    return data


def _headers(rows: object) -> list[tuple[bytes, bytes | None]]:
    if rows is None:
        return []
    if not isinstance(rows, list) or len(rows) > HEADERS_MAX:
        raise ValueError(f"headers are a list of {HEADERS_MAX} pairs at most")
    found = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 2:
            raise ValueError("a header is a name and a value")
        name, content = _bytes({"name": row[0]}, "name"), _bytes({"value": row[1]}, "value")
        if name is None:
            raise ValueError("a header has a name")
        found.append((name, content))
    return found


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key, unsigned (`client.producer.encoding` has it for columns, which need
    pyarrow)."""
    mask, factor = 0xFFFFFFFF, 0x5BD1E995
    whole = len(data) & ~3
    found = 0x9747B28C ^ len(data)
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * factor & mask
        word = (word ^ word >> 24) * factor & mask
        found = found * factor & mask ^ word
    if whole < len(data):
        found = (found ^ int.from_bytes(data[whole:], "little")) * factor & mask
    found = (found ^ found >> 13) * factor & mask
    return found ^ found >> 15
