"""What the voters of the metadata log say to each other: Kafka's Raft requests and responses.

The state machine (`quorum`) works with the small tuples here; on the wire they are Kafka's own
messages for one topic with one partition, `__cluster_metadata-0`:

    Vote              52  v2   pre-vote and vote (KIP-595, KIP-996)
    BeginQuorumEpoch  53  v1   the leader of a new epoch makes itself known
    EndQuorumEpoch    54  v1   a leader resigns
    Fetch              1  v17  records, pulled by the followers; v18 with their high watermark
    FetchSnapshot     59  v1   a piece of a snapshot (KIP-630)

Pure. What does not parse is a ProtocolFault.
"""

from __future__ import annotations

from typing import NamedTuple

from shmbroker.errors import ProtocolFault
from shmbroker.ids import METADATA_TOPIC_ID
from shmbroker.metadata.topic_names import METADATA_TOPIC
from shmbroker.wire import codec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.wire.primitives import Buffer

FETCH_BYTES_MAX = 8 << 20
SNAPSHOT_BYTES_MAX = 1 << 20
"""The bytes of a snapshot at once: a piece takes some milliseconds to write."""


class SnapshotId(NamedTuple):
    """A snapshot: one past its last offset, and that record's epoch."""

    end_offset: int
    epoch: int


class Vote(NamedTuple):
    """May I lead? `epoch` is the one that is voted in; of a pre-vote, the one that is now."""

    epoch: int
    candidate_id: int
    last_epoch: int
    end_offset: int
    is_pre_vote: bool


class VoteAnswer(NamedTuple):
    error: int
    epoch: int
    leader_id: int
    is_granted: bool


class BeginEpoch(NamedTuple):
    epoch: int
    leader_id: int


class EndEpoch(NamedTuple):
    """`candidates`: who should stand for election, the best first."""

    epoch: int
    leader_id: int
    candidates: tuple[int, ...]


class EpochAnswer(NamedTuple):
    """The answer to BeginEpoch and EndEpoch."""

    error: int
    epoch: int
    leader_id: int


class Fetch(NamedTuple):
    """The follower's log ends at `fetch_offset`, durably, with a record of `last_fetched_epoch`."""

    epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    high_watermark: int
    wait_ms: int


class QuorumFetchAnswer(NamedTuple):
    """Records from the fetch offset on, or where the logs part, or the snapshot to begin with."""

    error: int
    epoch: int
    leader_id: int
    high_watermark: int = -1
    diverging: tuple[int, int] | None = None
    """The leader's largest epoch not above the one asked for, and where that ends."""
    snapshot: SnapshotId | None = None
    records: Buffer = b""


class FetchSnapshot(NamedTuple):
    epoch: int
    snapshot: SnapshotId
    position: int


class SnapshotAnswer(NamedTuple):
    error: int
    epoch: int
    leader_id: int
    snapshot: SnapshotId = SnapshotId(-1, -1)
    size: int = 0
    position: int = 0
    data: bytes = b""


Request = Vote | BeginEpoch | EndEpoch | Fetch | FetchSnapshot
Answer = VoteAnswer | EpochAnswer | QuorumFetchAnswer | SnapshotAnswer


class RequestCame(NamedTuple):
    """News for the quorum: another voter asks."""

    voter: int
    request_id: Any
    """What its answer is sent with."""
    request: Request


class AnswerCame(NamedTuple):
    """News for the quorum: a request of its own has an answer."""

    voter: int
    request_id: int
    answer: Answer


class NoAnswer(NamedTuple):
    """News for the quorum: a request of its own could not be sent, or will have no answer."""

    voter: int
    request_id: int


News = RequestCame | AnswerCame | NoAnswer

KEYS: dict[type[Request], tuple[int, str, int]] = {
    Vote: (52, "Vote", 2),
    BeginEpoch: (53, "BeginQuorumEpoch", 1),
    EndEpoch: (54, "EndQuorumEpoch", 1),
    Fetch: (1, "Fetch", 18),
    FetchSnapshot: (59, "FetchSnapshot", 1),
}
"""Api key, name and version of each request."""

_BY_KEY = {row[0]: (kind, *row[1:]) for kind, row in KEYS.items()}


def encode_request(message: Request, sender_id: int, receiver_id: int, cluster_id: str) -> bytes:
    """The body of the request that `sender_id` sends to `receiver_id`."""
    _, name, version = KEYS[type(message)]
    body: dict[str, Any] = {"cluster_id": cluster_id}
    if isinstance(message, Vote):
        body |= {"voter_id": receiver_id} | _one(
            partition_index=0,
            replica_epoch=message.epoch,
            replica_id=message.candidate_id,
            last_offset_epoch=message.last_epoch,
            last_offset=message.end_offset,
            pre_vote=message.is_pre_vote,
        )
    elif isinstance(message, BeginEpoch):
        body |= {"voter_id": receiver_id} | _one(
            partition_index=0, leader_id=message.leader_id, leader_epoch=message.epoch
        )
    elif isinstance(message, EndEpoch):
        body |= _one(
            partition_index=0,
            leader_id=message.leader_id,
            leader_epoch=message.epoch,
            preferred_candidates=[{"candidate_id": each} for each in message.candidates],
        )
    elif isinstance(message, Fetch):
        partition: dict[str, Any] = {
            "partition": 0,
            "current_leader_epoch": message.epoch,
            "fetch_offset": message.fetch_offset,
            "last_fetched_epoch": message.last_fetched_epoch,
            "partition_max_bytes": FETCH_BYTES_MAX,
            "high_watermark": message.high_watermark,
        }
        body |= {
            "replica_state": {"replica_id": sender_id},
            "max_wait_ms": message.wait_ms,
            "max_bytes": FETCH_BYTES_MAX,
            "topics": [{"topic_id": METADATA_TOPIC_ID, "partitions": [partition]}],
        }
    else:
        partition = {
            "partition": 0,
            "current_leader_epoch": message.epoch,
            "snapshot_id": message.snapshot._asdict(),
            "position": message.position,
        }
        body |= {
            "replica_id": sender_id,
            "max_bytes": SNAPSHOT_BYTES_MAX,
            "topics": [{"name": METADATA_TOPIC, "partitions": [partition]}],
        }
    return codec.encode(name + "Request", version, body)


def decode_request(
    api_key: int, api_version: int, body: Buffer, position: int, cluster_id: str
) -> Request:
    """The request in `body` from `position` on; ProtocolFault if it is none of ours."""
    kind, name, version = _BY_KEY.get(api_key, (None, "", -1))
    if kind is None or api_version != version:
        raise ProtocolFault(f"request {api_key} v{api_version} from a voter")
    message, _ = codec.decode(name + "Request", version, body, position)
    if message["cluster_id"] not in (None, cluster_id):
        raise ProtocolFault(f"a voter of the cluster {message['cluster_id']}")
    row = _the_one(message)
    if kind is Vote:
        return Vote(
            row["replica_epoch"],
            row["replica_id"],
            row["last_offset_epoch"],
            row["last_offset"],
            row["pre_vote"],
        )
    if kind is BeginEpoch:
        return BeginEpoch(row["leader_epoch"], row["leader_id"])
    if kind is EndEpoch:
        candidates = tuple(each["candidate_id"] for each in row["preferred_candidates"])
        return EndEpoch(row["leader_epoch"], row["leader_id"], candidates)
    if kind is Fetch:
        return Fetch(
            row["current_leader_epoch"],
            row["fetch_offset"],
            row["last_fetched_epoch"],
            row["high_watermark"],
            message["max_wait_ms"],
        )
    return FetchSnapshot(
        row["current_leader_epoch"], SnapshotId(**row["snapshot_id"]), row["position"]
    )


def encode_answer(api_key: int, answer: Answer) -> bytes:
    """The body of the response."""
    _, name, version = _BY_KEY[api_key]
    if isinstance(answer, VoteAnswer):
        body = _one(
            error_code=answer.error,
            leader_id=answer.leader_id,
            leader_epoch=answer.epoch,
            vote_granted=answer.is_granted,
        )
    elif isinstance(answer, EpochAnswer):
        body = _one(error_code=answer.error, leader_id=answer.leader_id, leader_epoch=answer.epoch)
    elif isinstance(answer, QuorumFetchAnswer):
        row: dict[str, Any] = {
            "partition_index": 0,
            "error_code": answer.error,
            "high_watermark": answer.high_watermark,
            "current_leader": {"leader_id": answer.leader_id, "leader_epoch": answer.epoch},
            "aborted_transactions": None,
            "records": answer.records,
        }
        if answer.diverging is not None:
            epoch, end_offset = answer.diverging
            row["diverging_epoch"] = {"epoch": epoch, "end_offset": end_offset}
        if answer.snapshot is not None:
            row["snapshot_id"] = answer.snapshot._asdict()
        body = {"responses": [{"topic_id": METADATA_TOPIC_ID, "partitions": [row]}]}
    else:
        row = {
            "index": 0,
            "error_code": answer.error,
            "snapshot_id": answer.snapshot._asdict(),
            "current_leader": {"leader_id": answer.leader_id, "leader_epoch": answer.epoch},
            "size": answer.size,
            "position": answer.position,
            "unaligned_records": answer.data,
        }
        body = {"topics": [{"name": METADATA_TOPIC, "partitions": [row]}]}
    return codec.encode(name + "Response", version, body)


def decode_answer(api_key: int, body: Buffer, position: int) -> Answer:
    """The response to a request with this key; ProtocolFault if it is none."""
    kind, name, version = _BY_KEY[api_key]
    message, _ = codec.decode(name + "Response", version, body, position)
    row = _the_one(message)
    error = message["error_code"] or row["error_code"]
    if kind is Vote:
        return VoteAnswer(error, row["leader_epoch"], row["leader_id"], row["vote_granted"])
    if kind is BeginEpoch or kind is EndEpoch:
        return EpochAnswer(error, row["leader_epoch"], row["leader_id"])
    leader = row["current_leader"]
    snapshot = SnapshotId(**row["snapshot_id"])
    if kind is Fetch:
        diverging = row["diverging_epoch"]
        parted = (diverging["epoch"], diverging["end_offset"])
        return QuorumFetchAnswer(
            error,
            leader["leader_epoch"],
            leader["leader_id"],
            row["high_watermark"],
            parted if parted[0] >= 0 else None,
            snapshot if snapshot.end_offset >= 0 else None,
            row["records"] or b"",
        )
    return SnapshotAnswer(
        error,
        leader["leader_epoch"],
        leader["leader_id"],
        snapshot,
        row["size"],
        row["position"],
        bytes(row["unaligned_records"] or b""),
    )


def _one(**partition: Any) -> dict[str, Any]:
    return {"topics": [{"topic_name": METADATA_TOPIC, "partitions": [partition]}]}


def _the_one(message: dict[str, Any]) -> dict[str, Any]:
    """The only partition that a message is about."""
    topics = message.get("topics", message.get("responses"))
    if not topics or len(topics) != 1 or len(topics[0]["partitions"]) != 1:
        raise ProtocolFault("a voter speaks of other partitions than the metadata log")
    row: dict[str, Any] = topics[0]["partitions"][0]
    return row
