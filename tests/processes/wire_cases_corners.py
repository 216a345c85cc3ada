"""Corners of many APIs, where requests at random were answered otherwise than by Kafka.

What several rows of one request do to each other, and what is judged first.
"""

from typing import Any

from shmbroker import clock
from tests.processes.wire_cases import STRANGER, ZERO, Answers, scenario, versions
from tests.processes.wire_cases_produce import BATCHES, GOOD, by_id
from tests.processes.wire_cases_transactions import Producer, find, patiently
from tests.processes.wire_side import Side
from tests.support.raw_client import RawClient, batch_of, produce_body


@scenario
def produce_corners(side: Side) -> Answers:
    """Garbage in one partition beside others, and batches of transactions."""
    topic = side.topic("produced", 3)
    one = Producer(side, "tx")
    two = Producer(side, "tx2")

    def several(version: int, *partitions: tuple[int, bytes], tx: str | None = None) -> Any:
        body = produce_body(topic, None)
        body["transactional_id"] = tx
        body["topic_data"][0]["partition_data"] = [
            {"index": index, "records": records} for index, records in partitions
        ]
        answer = side.ask("Produce", version, by_id(body, side.topics[topic], version))
        for row in answer["responses"][0]["partition_responses"]:
            row.pop("base_offset", None)
        return answer

    def of(producer_id: int, epoch: int, sequence: int = 0) -> bytes:
        return batch_of(
            b"x", producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence,
            is_transactional=True,
        )  # fmt: skip

    for version in versions("Produce"):
        for name in ("12 zeros behind", "length 14", "length 49", "two batches"):
            bad = BATCHES[name]
            assert bad is not None
            yield f"{name}, beside a good one", version, several(version, (0, GOOD), (1, bad))
            yield f"{name}, no such partition", version, several(version, (9, bad))
        short = BATCHES["length 13"]
        assert short is not None
        known = of(one.producer_id, one.epoch, 7)
        answer = several(version, (0, known), (1, short), tx=one.name)
        yield "garbage behind one of a transaction", version, answer
        answer = several(version, (1, short), (0, known), tx=one.name)
        yield "garbage before one of a transaction", version, answer
        stranger = of(one.producer_id + 1_000_000, 0)
        yield "producer of no transaction", version, several(version, (0, stranger), tx=one.name)
        answer = several(version, (0, of(one.producer_id, 5)), tx=one.name)
        yield "epoch of no transaction", version, answer
        other = of(two.producer_id, two.epoch)
        answer = several(version, (0, known), (1, other), (2, GOOD), (9, GOOD), tx=one.name)
        yield "two producers of transactions", version, answer
        answer = several(version, (2, of(-1, -1)), tx=one.name)
        yield "of a transaction and no producer", version, answer
        if version < 12:
            answer = several(version, (2, of(one.producer_id, one.epoch)), tx=one.name)
            yield "partition that was not added", version, answer


@scenario
def transaction_corners(side: Side) -> Answers:
    """What is judged before the coordinator is asked about a batch, and what behind; whether the
    partition is part of the transaction then. Topics twice, partitions twice, none at all."""
    topic, second = side.topic("t", 3), side.topic("u", 2)
    small = side.topic("small", 1, max_message_bytes="100")
    far = clock.now_ms() + 7_200_000
    for version in (9, 11, 12):
        for name, wanted, more in (
            ("damaged", topic, {"damage": -1}),
            ("a control batch", topic, {"is_control": True}),
            ("from the future", topic, {"timestamp": far}),
            ("too large", small, {"value": b"x" * 100}),
            ("not the first", topic, {"base_sequence": 3}),
        ):
            one = Producer(side, f"{name}-{version}")
            yield f"{name}, not added", version, tried(one, version, wanted, **more)
            yield f"{name}, then in it", version, parts_of(one)
            if version < 12:
                one.add(3, {wanted: [0]})
                yield f"{name}, added", version, tried(one, version, wanted, **more)
        one = Producer(side, f"fenced-{version}")
        if version < 12:
            one.add(3, {second: [0]})
        marker = {
            "producer_id": one.producer_id, "producer_epoch": one.epoch + 1,
            "transaction_result": True, "coordinator_epoch": 0,
            "topics": [{"name": second, "partition_indexes": [0]}],
        }  # fmt: skip
        side.ask("WriteTxnMarkers", 1, {"markers": [marker]})
        yield "fenced at the leader", version, tried(one, version, second)
        yield "fenced at the leader, then in it", version, parts_of(one)
    one = Producer(side, "shapes")
    for version in versions("AddPartitionsToTxn"):
        for name, rows in {
            "one topic twice": [(topic, [0]), (second, [1]), (topic, [1])],
            "one topic twice, one unknown": [(topic, [0]), (second, [1]), (topic, [7])],
            "one partition twice": [(topic, [0, 0])],
            "one partition twice, one unknown": [(topic, [0, 7, 0])],
            "no partitions": [(topic, [])],
            "no partitions beside some": [(topic, []), (second, [0])],
            "no partitions beside unknown": [(topic, []), (second, [7])],
        }.items():
            topics = [{"name": each, "partitions": indexes} for each, indexes in rows]
            for words, more in {
                "": {}, ", old epoch": {"producer_epoch": one.epoch - 1},
                ", only to verify": {"verify_only": True},
            }.items():  # fmt: skip
                who = one.who(**{key: value for key, value in more.items() if key != "verify_only"})
                if version >= 4:
                    only = {"verify_only": "verify_only" in more}
                    body = {"transactions": [who | {"topics": topics} | only]}
                elif "verify_only" in more:
                    continue
                else:
                    body = {f"v3_and_below_{key}": value for key, value in who.items()}
                    body["v3_and_below_topics"] = topics
                answer = side.ask("AddPartitionsToTxn", version, body)
                yield f"{name}{words}", version, in_order(answer)


def tried(one: Producer, version: int, topic: str, **more: Any) -> Any:
    """How a batch of a producer's transaction is answered. damage: a byte of it is another one."""
    damage = more.pop("damage", None)
    more.setdefault("base_sequence", 0)
    data = bytearray(
        batch_of(
            more.pop("value", b"x"), producer_id=one.producer_id, producer_epoch=one.epoch,
            is_transactional=True, **more,
        )
    )  # fmt: skip
    if damage is not None:
        data[damage] ^= 1
    body = produce_body(topic, bytes(data)) | {"transactional_id": one.name}
    return patiently(lambda: one.side.ask("Produce", version, body))


def parts_of(one: Producer) -> Any:
    """The partitions of a producer's transaction."""
    found = one.side.ask("DescribeTransactions", 0, {"transactional_ids": [one.name]})
    (row,) = found["transaction_states"]
    return [row.get("transaction_state"), row.get("topics")]


def in_order(answer: Any) -> Any:
    """An AddPartitionsToTxn's answer, whose rows Kafka has in the order of hash maps."""
    for result in answer.get("results_by_transaction", [answer]):
        for key in ("topic_results", "results_by_topic_v3_and_below"):
            for topic in result.get(key, ()):
                topic.get("results_by_partition", []).sort(
                    key=lambda row: row.get("partition_index", 0)
                )
            if key in result:
                result[key].sort(key=lambda topic: (topic["name"], str(topic)))
    return answer


@scenario
def read_corners(side: Side) -> Answers:
    """What is looked at first, and what is told of topics that there are not."""
    topic = side.topic("read")
    for version in versions("ListOffsets"):
        for name in (topic, side.name("unknown")):
            for index in (0, 3):
                row = {"partition_index": index, "timestamp": -9}
                if version >= 4:
                    row["current_leader_epoch"] = 7
                body = {"replica_id": -1, "topics": [{"name": name, "partitions": [row]}]}
                answer = side.ask("ListOffsets", version, body)
                yield f"timestamp -9 of {side._short(name)}-{index}", version, answer
    for version in versions("Metadata"):
        if version < 8:
            continue
        for name in ("unknown", "..", ""):
            asked: dict[str, Any] = {"name": side.name(name) if name == "unknown" else name}
            if version >= 10:
                asked["topic_id"] = ZERO
            body = {
                "topics": [asked],
                "allow_auto_topic_creation": False,
                "include_topic_authorized_operations": True,
            }
            found = side.ask("Metadata", version, body)["topics"]
            yield f"operations of topic {name!r}", version, found
        if version >= 12:
            body["topics"] = [{"name": None, "topic_id": STRANGER}]
            found = side.ask("Metadata", version, body)["topics"]
            yield "operations of an unknown id", version, found
    for version in versions("DescribeConfigs"):
        rows = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": ["segment.ms"]}
            for kind, name in ((2, topic), (9, "a"), (7, "b"), (2, topic))
        ]
        answer = side.ask("DescribeConfigs", version, {"resources": rows})
        yield "settings of an unknown kind beside a topic", version, answer
    for version in versions("Fetch")[9:]:
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
        body = {
            "max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1000, "session_id": 0,
            "session_epoch": 0, "topics": [{"topic_id": ZERO, "partitions": [partition]}],
        }  # fmt: skip
        yield "new session, topic id zero", version, side.ask("Fetch", version, body)
    for value in ("0.5d", "1F", ".5", "5.", "1e-1f", "d", "0.5dd", "NaNd", ""):
        for version in versions("AlterConfigs"):
            config = {"name": "min.cleanable.dirty.ratio", "value": value}
            rows = [{"resource_type": 2, "resource_name": topic, "configs": [config]}]
            body = {"resources": rows, "validate_only": True}
            yield f"double {value!r}", version, side.ask("AlterConfigs", version, body)


@scenario
def group_corners(side: Side) -> Answers:
    """The group without a name, whose offsets are the only ones it has; instances without one."""
    topic = side.topic("t")
    find(side, "", 0)
    place = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    body: dict[str, Any] = {
        "group_id": "",
        "member_id": "",
        "topics": [{"name": topic, "partitions": [place]}],
    }
    yield "commit without a name", "-", side.ask("OffsetCommit", 8, body)
    asked = {
        "Heartbeat": {"group_id": "", "generation_id": 1, "member_id": "m"},
        "SyncGroup": {"group_id": "", "generation_id": 1, "member_id": "m"},
        "LeaveGroup": {"group_id": ""},
        "OffsetDelete": {
            "group_id": "",
            "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}],
        },
        "ConsumerGroupDescribe": {"group_ids": [""]},
        "DescribeGroups": {"groups": [""]},
        "JoinGroup": {
            "group_id": "", "session_timeout_ms": 10_000, "member_id": "",
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}],
        },
    }  # fmt: skip
    for api, of_api in asked.items():
        for version in versions(api):
            more = {"rebalance_timeout_ms": 1000} if api == "JoinGroup" and version else {}
            if api == "LeaveGroup":
                more = {"members": [{"member_id": "m"}]} if version >= 3 else {"member_id": "m"}
            yield f"{api} without a name", version, side.ask(api, version, of_api | more)

    group = side.name("g")
    find(side, group, 0)
    joining = asked["JoinGroup"] | {
        "group_id": group, "group_instance_id": "", "rebalance_timeout_ms": 1000,
    }  # fmt: skip
    with RawClient(side.address) as client:
        client.ask("JoinGroup", 5, joining)
    for member in ({"member_id": ""}, {"member_id": "", "group_instance_id": ""}):
        answer = side.ask("LeaveGroup", 5, {"group_id": group, "members": [member]})
        yield f"leaves as {member}", 5, answer
    for api in ("DescribeGroups", "ConsumerGroupDescribe"):
        for version in versions(api):
            twice = {"groups" if api == "DescribeGroups" else "group_ids": [group, group]}
            yield f"{api}, one twice", version, side.ask(api, version, twice)

    refused = joining | {"group_id": side.name("refused"), "protocols": []}
    find(side, refused["group_id"], 0)
    yield "join without a protocol", 5, side.ask("JoinGroup", 5, refused)
    answer = side.ask("DescribeGroups", 5, {"groups": [refused["group_id"]]})
    yield "group that a join was refused in", 5, answer
    place["committed_metadata"] = "x" * 4097
    body |= {"group_id": side.name("long")}
    yield "commit of too much text", "-", side.ask("OffsetCommit", 8, body)
    answer = side.ask("DescribeGroups", 5, {"groups": [body["group_id"]]})
    yield "group that a commit was refused in", 5, answer


@scenario
def assignor_corners(side: Side) -> Answers:
    """As many votes for one assignor as for the other."""
    topic = side.topic("t", 2)
    for order in (("range", "uniform"), ("uniform", "range")):
        group = side.name(f"{order[0]}-first")
        find(side, group, 0)
        for assignor in order:
            body = {
                "group_id": group, "member_id": assignor, "member_epoch": 0,
                "rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic],
                "server_assignor": assignor, "topic_partitions": [],
            }  # fmt: skip
            side.ask("ConsumerGroupHeartbeat", 0, body)
        found = side.ask("ConsumerGroupDescribe", 0, {"group_ids": [group]})
        yield f"{order[0]} before {order[1]}", "-", found["groups"][0].get("assignor_name")


@scenario
def admin_corners(side: Side) -> Answers:
    """Requests for nothing, names that are too long for a directory, users twice."""
    for version in versions("AlterPartitionReassignments"):
        for may_change in (True, False) if version else (None,):
            body: dict[str, Any] = {"topics": []}
            if may_change is not None:
                body["allow_replication_factor_change"] = may_change
            answer = side.ask("AlterPartitionReassignments", version, body)
            yield f"no reassignments, factor {may_change}", version, answer
    for version in versions("AlterReplicaLogDirs"):
        for length, index in ((213, 1), (214, 1), (213, 10), (214, -1), (249, 0)):
            topics = [{"name": "x" * length, "partitions": [index]}]
            body = {"dirs": [{"path": "/nowhere", "topics": topics}]}
            answer = side.ask("AlterReplicaLogDirs", version, body)
            code = answer["results"][0]["partitions"][0]["error_code"]
            yield f"name of {length}, partition {index}", version, code
    good, empty = (
        {
            "name": side.name("u"), "mechanism": 1, "iterations": 4096, "salt": b"salt",
            "salted_password": password,
        }
        for password in (b"password", b"")
    )  # fmt: skip
    for name, rows in {
        "empty": [empty],
        "empty twice": [empty, empty],
        "empty, then good": [empty, good],
        "good, then empty": [good, empty],
        "thrice": [empty, good, good],
    }.items():
        answer = side.ask("AlterUserScramCredentials", 0, {"deletions": [], "upsertions": rows})
        yield f"salted password {name}", 0, answer


@scenario
def offset_corners(side: Side) -> Answers:
    """Topics twice, without partitions, known and unknown: how the answers are put together."""
    topic, second = side.topic("t", 2), side.topic("u", 2)
    unknown, group = side.name("none"), side.name("g")
    find(side, group, 0)
    find(side, "x", 1)
    place = {"committed_offset": 1, "committed_metadata": ""}
    mixtures: dict[str, list[tuple[str, list[int]]]] = {
        "good twice": [(topic, [0]), (second, [0]), (topic, [1])],
        "bad behind good": [(topic, [0]), (second, [7, 0]), (topic, [1, 7])],
        "unknown behind good": [(topic, [0]), (unknown, [0]), (unknown, [1])],
        "no partitions": [(topic, []), (second, [])],
        "no partitions beside some": [(topic, []), (second, [0])],
        "unknown without partitions": [(topic, [0]), (unknown, [])],
        "unknown without partitions alone": [(unknown, [])],
        "partition twice": [(topic, [0, 0]), (topic, [7, 7])],
    }
    ids = {topic: side.topics[topic], second: side.topics[second], unknown: STRANGER}
    for name, rows in mixtures.items():
        for version in versions("OffsetCommit"):
            topics = [
                ({"topic_id": ids[each]} if version >= 10 else {"name": each})
                | {"partitions": [place | {"partition_index": index} for index in indexes]}
                for each, indexes in rows
            ]
            body: dict[str, Any] = {"group_id": group, "member_id": "", "topics": topics}
            yield f"OffsetCommit, {name}", version, side.ask("OffsetCommit", version, body)
            body["generation_id_or_member_epoch"] = 5
            answer = side.ask("OffsetCommit", version, body)
            yield f"OffsetCommit, {name}, wrong generation", version, answer
        topics = [
            {
                "name": each,
                "partitions": [place | {"partition_index": index} for index in indexes],
            }
            for each, indexes in rows
        ]
        for version in versions("TxnOffsetCommit"):
            body = {
                "transactional_id": "x", "group_id": group, "producer_id": 1 << 40,
                "producer_epoch": 0, "topics": topics,
            }  # fmt: skip
            if version >= 3:
                body["member_id"] = ""
            yield f"TxnOffsetCommit, {name}", version, side.ask("TxnOffsetCommit", version, body)
        topics = [
            {"name": each, "partitions": [{"partition_index": index} for index in indexes]}
            for each, indexes in rows
        ]
        for short in (group, side.name("no such group")):
            answer = side.ask("OffsetDelete", 0, {"group_id": short, "topics": topics})
            yield f"OffsetDelete, {name}, of {side._short(short)}", 0, answer
