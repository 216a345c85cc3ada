"""A producer's transactional id: what it asks the coordinators, and in which order it may.

    new ──init──► ready ──begin──► open ──end──► ready
                    ▲               │ │
                    │     refused   │ └─ no answer to end ──► undecided ──init──► ready
                    │               ▼
                    └─init── end ─ failed     can only be aborted

Versions are those of transaction.version 1, which every Kafka since 2.8 knows: partitions are added
before the first batch goes there, and the epoch is the same until something is aborted. Each abort
is followed by InitProducerId with the epoch that was (KIP-360): the next epoch begins with sequence
0 everywhere, and what was on its way is refused if it comes late.

Faults
  FencedFault        somebody else has the transactional id, or the coordinator has ended the
                     transaction for its time: the producer is at its end (KIP-588 tells both alike)
  TransactionFault   this transaction can't be committed: abort it
  ClusterFault       no answer within `wait_s`; where an end was asked for, it may have happened

Source: KIP-98, KIP-360, KIP-447.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

from shmbroker import clock
from shmbroker.client.cluster import Cluster
from shmbroker.client.connection import Connection
from shmbroker.client.faults import (
    ClusterFault,
    FencedFault,
    RefusedFault,
    TransactionFault,
    refuse,
)
from shmbroker.client.producer.delivery import NO_IDENTITY, ProducerIdentity
from shmbroker.client.retries import patiently
from shmbroker.errors import ConfigFault
from shmbroker.ids import TopicPartition
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import (
    ADD_OFFSETS_TO_TXN,
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    OFFSET_FETCH,
    TXN_OFFSET_COMMIT,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message

_GROUP, _TRANSACTION = 0, 1
"""Key types of FindCoordinator."""
FENCED = (error_codes.PRODUCER_FENCED, error_codes.INVALID_PRODUCER_EPOCH)
_NOT_BEGUN = (error_codes.INVALID_TXN_STATE, error_codes.INVALID_PRODUCER_ID_MAPPING)
"""Errors of an abort that say: the coordinator has nothing to end."""
_ENDING = ("PrepareCommit", "PrepareAbort")
"""Decided, and not every partition has the marker that tells it."""
_MARKERS_S = 0.005
"""A round of markers takes about as long."""
_CONFLUENT = b"CGMDv2:"
"""How the group metadata of confluent-kafka begin."""

NEW, READY, OPEN, FAILED, UNDECIDED = "new", "ready", "open", "failed", "undecided"

T = TypeVar("T")


class GroupMember(NamedTuple):
    """The member that commits offsets. With a generation (of classic groups; the member epoch of
    others) and a member, the coordinator refuses one that is no member any more (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


@runtime_checkable
class GroupMetadata(Protocol):
    """What `consumer.group_metadata()` of kafka-python and others gives."""

    @property
    def group_id(self) -> str: ...
    @property
    def generation_id(self) -> int: ...
    @property
    def member_id(self) -> str: ...
    @property
    def group_instance_id(self) -> str | None: ...


def member_of(group: str | bytes | GroupMetadata) -> GroupMember:
    """A group's name, or what a consumer's group metadata say; ConfigFault if it is neither."""
    if isinstance(group, str):
        return GroupMember(group)
    if isinstance(group, bytes) and group.startswith(_CONFLUENT):
        at = len(_CONFLUENT) + 4
        generation_id = int.from_bytes(group[at - 4 : at], "little", signed=True)
        texts = group[at:].split(b"\0", 2)
        if len(texts) == 3 and texts[2]:
            instance = None if texts[2][0] else texts[2][1:].rstrip(b"\0").decode()
            return GroupMember(texts[0].decode(), generation_id, texts[1].decode(), instance)
    elif isinstance(group, GroupMetadata):
        return GroupMember(
            group.group_id, group.generation_id, group.member_id, group.group_instance_id
        )
    raise ConfigFault(
        f"{group!r} names no group: give its id, or what a consumer says of its membership"
        " (consumer_group_metadata() of confluent-kafka)"
    )


class _Coordinator:
    """A connection to the coordinator of a group or a transactional id, found when needed."""

    def __init__(self, cluster: Cluster, key: str, key_type: int) -> None:
        self._cluster = cluster
        self._key = {"key": key, "key_type": key_type}
        self._connection: Connection | None = None

    def ask(self, api_key: int, body: Message) -> Message:
        if self._connection is None:
            found = self._cluster.ask_any(FIND_COORDINATOR, self._key)
            about = f"coordinator of {self._key['key']}"
            refuse(found["error_code"], about, found["error_message"])
            self._connection = self._cluster.connect((found["host"], found["port"]))
        return self._connection.ask(api_key, body)

    def close(self) -> None:
        """Close the connection; the coordinator is found again at the next question."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class ProducerTransactions:
    """One transactional id; used by one thread at a time. `wait_s`: how long an answer is asked
    for."""

    def __init__(
        self, cluster: Cluster, transactional_id: str, timeout_ms: int, wait_s: float
    ) -> None:
        if not transactional_id:
            raise ConfigFault("transactional_id is empty: give a name that stays the same")
        self.name = transactional_id
        self.state = NEW
        self.identity = NO_IDENTITY
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._wait_s = wait_s
        self._coordinator = _Coordinator(cluster, transactional_id, _TRANSACTION)
        self._added: set[TopicPartition] = set()
        self._groups: dict[str, _Coordinator] = {}
        """The groups whose offsets are in the transaction."""

    @property
    def is_begun(self) -> bool:
        """Whether there is a transaction to commit or abort."""
        return self.state in (OPEN, FAILED)

    def close(self) -> None:
        """End the connections."""
        for each in (self._coordinator, *self._groups.values()):
            each.close()

    def wait_at_most(self, wait_s: float) -> None:
        """Ask for an answer so long from now on."""
        self._wait_s = wait_s

    def init(self) -> ProducerIdentity:
        """A new epoch: ends what a predecessor, or this one, has left open, and fences it."""
        about = f"transactional id {self.name}"
        body: Message = {
            "transactional_id": self.name,
            "transaction_timeout_ms": self._timeout_ms,
            "producer_id": self.identity.producer_id,
            "producer_epoch": self.identity.epoch,
        }

        def take(answer: Message) -> ProducerIdentity:
            self._refuse(answer["error_code"], about)
            return ProducerIdentity(answer["producer_id"], answer["producer_epoch"], True)

        self.identity = self._asked(INIT_PRODUCER_ID, body, take, f"{about} was not there")
        self._forget()
        return self.identity

    def begin(self) -> None:
        """Begin a transaction; the cluster is not told before something is in it."""
        self._expect(READY, "another transaction is under way: commit or abort it first")
        self.state = OPEN

    def add(self, topic: str, partitions: Iterable[int]) -> None:
        """Add partitions that get records; the coordinator knows of them when it returns."""
        self.check_open()
        new = sorted(set(partitions) - {index for name, index in self._added if name == topic})
        if not new:
            return
        body: Message = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.identity.producer_id,
            "v3_and_below_producer_epoch": self.identity.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": new}],
        }

        def take(answer: Message) -> None:
            # Where one partition is at fault, the others are told OPERATION_NOT_ATTEMPTED.
            errors = {
                row["partition_error_code"]: (found["name"], row["partition_index"])
                for found in answer["results_by_topic_v3_and_below"]
                for row in found["results_by_partition"]
            }
            errors.pop(error_codes.NONE, None)
            if len(errors) > 1:
                errors.pop(error_codes.OPERATION_NOT_ATTEMPTED, None)
            for error, (name, index) in errors.items():
                self._refuse(error, f"{name}-{index} in a transaction")

        self._in_transaction(ADD_PARTITIONS_TO_TXN, body, take, f"{topic} is not added")
        self._added.update((topic, index) for index in new)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int], group: str | bytes | GroupMetadata
    ) -> None:
        """Commit a group's offsets, the next ones to read, with the transaction."""
        self.check_open()
        member = member_of(group)
        who: Message = {
            "transactional_id": self.name,
            "producer_id": self.identity.producer_id,
            "producer_epoch": self.identity.epoch,
            "group_id": member.group_id,
        }
        about = f"offsets of group {member.group_id} in a transaction"
        topics: dict[str, list[Message]] = {}
        for (topic, index), offset in offsets.items():
            row: Message = {"partition_index": index, "committed_offset": offset}
            topics.setdefault(topic, []).append(row | {"committed_metadata": ""})
        if not topics:
            return
        if member.group_id not in self._groups:

            def added(answer: Message) -> None:
                self._refuse(answer["error_code"], about)

            self._in_transaction(ADD_OFFSETS_TO_TXN, who, added, f"{about} are not taken")
            self._groups[member.group_id] = _Coordinator(self._cluster, member.group_id, _GROUP)

        def stored(answer: Message) -> None:
            for topic in answer["topics"]:
                for row in topic["partitions"]:
                    where = f"{topic['name']}-{row['partition_index']}"
                    self._refuse(row["error_code"], f"{about}, {where}")

        body = who | member._asdict()
        body["topics"] = [{"name": name, "partitions": rows} for name, rows in topics.items()]
        self._in_transaction(
            TXN_OFFSET_COMMIT,
            body,
            stored,
            f"{about} are not taken",
            self._groups[member.group_id],
        )

    def committed(self, group: str) -> dict[TopicPartition, int]:
        """The offsets that a group has committed; none that a transaction has still open."""
        about = f"offsets of group {group}"
        coordinator = _Coordinator(self._cluster, group, _GROUP)

        def take(answer: Message) -> dict[TopicPartition, int]:
            refuse(answer["error_code"], about)
            found = {}
            for topic in answer["topics"]:
                for row in topic["partitions"]:
                    refuse(row["error_code"], about)
                    found[topic["name"], row["partition_index"]] = row["committed_offset"]
            return found

        body: Message = {"group_id": group, "topics": None, "require_stable": True}
        try:
            return self._asked(OFFSET_FETCH, body, take, f"{about} are not told", coordinator)
        finally:
            coordinator.close()

    def fail(self) -> None:
        """Records of it could not be delivered: it can only be aborted."""
        if self.state == OPEN:
            self.state = FAILED

    def end(self, is_commit: bool) -> None:
        """Commit or abort; it is decided when it returns, and readers see it a moment later."""
        if is_commit:
            self.check_open()
        elif not self.is_begun:
            raise ConfigFault(f"no transaction to abort: it is {self.state}")
        word = "committed" if is_commit else "aborted"
        if self._added or self._groups:
            body: Message = {
                "transactional_id": self.name,
                "producer_id": self.identity.producer_id,
                "producer_epoch": self.identity.epoch,
                "committed": is_commit,
            }
            about = f"the transaction of {self.name} is not {word}"

            def take(answer: Message) -> None:
                error = answer["error_code"]
                if is_commit or error not in _NOT_BEGUN:
                    self._refuse(error, about)

            was, self.state = self.state, UNDECIDED
            try:
                self._asked(END_TXN, body, take, about)
            except RefusedFault as fault:
                if fault.__cause__ is not None or not is_commit:
                    raise  # out of time: what became of an earlier try is not known
                self.state = FAILED
                raise TransactionFault(f"{fault}: abort the transaction") from fault
            self.state = was
        self._forget()

    def wait_for_markers(self, wait_s: float) -> bool:
        """Wait after an end, for so long at most: whether readers see it in every partition."""
        deadline = clock.monotonic() + wait_s
        body: Message = {"transactional_ids": [self.name]}

        def state_of(answer: Message) -> str:
            (row,) = answer["transaction_states"]
            self._refuse(row["error_code"], f"transactional id {self.name}")
            state: str = row["transaction_state"]
            return state

        while clock.monotonic() < deadline:
            about = f"transactional id {self.name} is not told"
            if self._asked(DESCRIBE_TRANSACTIONS, body, state_of, about) not in _ENDING:
                return True
            clock.sleep(_MARKERS_S)
        return False

    def _forget(self) -> None:
        for each in self._groups.values():
            each.close()
        self._groups.clear()
        self._added.clear()
        self.state = READY

    def _expect(self, state: str, otherwise: str) -> None:
        if self.state != state:
            raise ConfigFault(otherwise)

    def check_open(self) -> None:
        """Check that a transaction is open: ConfigFault if there is none, TransactionFault if it
        can only be aborted."""
        if self.state == FAILED:
            raise TransactionFault("the transaction has failed: abort it")
        self._expect(OPEN, "no transaction is under way: begin one first")

    def _in_transaction(
        self,
        api_key: int,
        body: Message,
        take: Callable[[Message], None],
        what: str,
        coordinator: _Coordinator | None = None,
    ) -> None:
        """Ask a question without whose answer the transaction can't be committed."""
        try:
            self._asked(api_key, body, take, what, coordinator)
        except FencedFault:
            raise
        except ClusterFault as fault:
            self.state = FAILED
            raise TransactionFault(f"{fault}: abort the transaction") from fault

    def _asked(
        self,
        api_key: int,
        body: Message,
        take: Callable[[Message], T],
        what: str,
        coordinator: _Coordinator | None = None,
    ) -> T:
        whom = coordinator or self._coordinator
        try:
            return patiently(
                lambda: take(whom.ask(api_key, body)), self._wait_s, what, before_retry=whom.close
            )
        except BaseException:
            whom.close()  # an answer may still be to come
            raise

    def _refuse(self, error: int, what: str) -> None:
        if error in FENCED:
            raise fenced(self.name)
        refuse(error, what)


def fenced(transactional_id: str) -> FencedFault:
    """The fault of a producer whose epoch is not the newest."""
    return FencedFault(
        f"transactional id {transactional_id}: another producer has taken it, or its transaction"
        " took longer than transaction_timeout_ms; what was not committed is aborted, and only a"
        " new producer can go on"
    )
