"""What an API module may ask of the parts of an I/O worker: one Protocol for each part.

   BrokerContext ─┬─ .groups ──────── Groups ─┬─ .classics    the classic protocol
                  │                           ├─ .consumers   groups of KIP-848
                  │                           ├─ .offsets     committed offsets
                  │                           └─ .removal     groups that are deleted
                  ├─ .transactions ── Transactions ── .requests   what producers ask for
                  ├─ .store ───────── Store
                  ├─ .log_directory ─ Directory
                  └─ .tiering ─────── TierLookups

Rules of this file:
* The parts fulfil these as they are: nothing forwards. What a request does there is said at the
  part (`groups`, `broker.partition_store`, `broker.tiering`).
* Beside requests the parts have what the broker asks: turns, loading, leadership. It is not here,
  so that no request reaches it.
"""

from __future__ import annotations

from typing import Protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from shmbroker.groups.caller import Caller
    from shmbroker.groups.classic.group import ClassicGroup
    from shmbroker.groups.group_table import AnyGroup
    from shmbroker.groups.offset_coordinator import CommitRow, FetchedRow
    from shmbroker.groups.transactions.producer_requests import Done
    from shmbroker.groups.transactions.transaction import Transaction
    from shmbroker.ids import TopicPartition
    from shmbroker.replica.partition import Partition
    from shmbroker.security.identity import Identity

    Grant = tuple[int, int]
    """(word, value) of `shm.standing`: the same answer may be given again."""


class ClassicRequests(Protocol):
    """JoinGroup, SyncGroup, Heartbeat, LeaveGroup; the first two reply to the call."""

    def join(
        self, call: Caller, body: dict[str, Any], client_id: str, client_host: str, /
    ) -> None: ...

    def sync(self, call: Caller, body: dict[str, Any], /) -> None: ...

    def heartbeat(self, body: dict[str, Any], /) -> tuple[int, Grant | None]:
        """(error code, grant)."""

    def leave(
        self, group_id: str, leaving: list[tuple[str, str | None]], /
    ) -> tuple[int, list[int]]:
        """(error code of all, error code of each (member id, instance id))."""


class ConsumerRequests(Protocol):
    """ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

    def converts_in_steps(self, body: dict[str, Any], version: int, /) -> bool:
        """Whether a heartbeat would convert a classic group that is large: `convert` it first."""

    def convert(self, group_id: str, /) -> Iterator[None]: ...

    def heartbeat(
        self,
        body: dict[str, Any],
        version: int,
        client_id: str,
        client_host: str,
        identity: Identity,
        /,
    ) -> dict[str, Any]:
        """The whole answer."""

    def grant(self, body: dict[str, Any], client_id: str, client_host: str, /) -> Grant | None:
        """What allows to answer the heartbeat so again that was answered just now."""

    def describe(self, group_id: str, /) -> tuple[int, dict[str, Any] | None]:
        """(error code, row)."""


class OffsetRequests(Protocol):
    """OffsetCommit, TxnOffsetCommit, OffsetFetch, OffsetDelete, and what a marker ends of them."""

    def commit(
        self, body: dict[str, Any], version: int, offsets: list[CommitRow], /
    ) -> list[int]: ...

    def commit_in_transaction(
        self, body: dict[str, Any], offsets: list[CommitRow], /
    ) -> list[int]: ...

    def on_marker(self, partition: Partition, producer_id: int, is_commit: bool, /) -> None: ...

    def fetch(
        self,
        group_id: str,
        wanted: list[tuple[str, list[int]]] | None,
        require_stable: bool,
        member_id: str | None,
        member_epoch: int,
        /,
    ) -> tuple[int, list[tuple[str, list[FetchedRow]]]]:
        """(error code, [(topic, rows)]); all of the group if `wanted` is None."""

    def delete_offsets(
        self, group_id: str, offsets: list[tuple[str, int]], /
    ) -> tuple[int, list[int]]:
        """(error code of all, error code of each)."""


class GroupRemoval(Protocol):
    """DeleteGroups."""

    def delete(self, group_id: str, /) -> int: ...


class Groups(Protocol):
    """The groups that this broker coordinates."""

    @property
    def classics(self) -> ClassicRequests: ...
    @property
    def consumers(self) -> ConsumerRequests: ...
    @property
    def offsets(self) -> OffsetRequests: ...
    @property
    def removal(self) -> GroupRemoval: ...

    def partition_of(self, group_id: str, /) -> tuple[Partition | None, int]:
        """(the partition that keeps a group here, 0), or (None, error code)."""

    def may_end_transactions(self, partition: Partition, /) -> int:
        """The error code for who would append a marker to a partition: not while it is loaded."""

    def describe(self, group_id: str, /) -> tuple[int, ClassicGroup | None]:
        """(error code, group); (0, None) if there is no classic one."""

    def list_groups(self, states: set[str], types: set[str], /) -> tuple[int, list[AnyGroup]]:
        """(error code, groups); states and types in lower case, no name: all."""


class ProducerRequests(Protocol):
    """InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn; `done` is told once."""

    def init_producer_id(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        timeout_ms: int,
        done: Done,
        /,
    ) -> None: ...

    def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        client_version: int,
        done: Done,
        /,
    ) -> None: ...

    def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Iterable[TopicPartition],
        /,
    ) -> dict[TopicPartition, int]:
        """The error code of each partition that is to be part of the transaction already."""

    def end(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        is_commit: bool,
        client_version: int,
        done: Done,
        /,
    ) -> None: ...


class Transactions(Protocol):
    """The transactional ids that this broker coordinates."""

    @property
    def requests(self) -> ProducerRequests: ...

    def describe(self, transactional_id: str, /) -> tuple[int, Transaction | None]:
        """(error code, what is known of the id)."""

    def all_known(self) -> tuple[int, list[tuple[str, Transaction]]]:
        """(error code, each id with what is known of it)."""


class Store(Protocol):
    """The store of the logs."""

    @property
    def is_fenced(self) -> bool:
        """Whether the directory is offline, for a fault of its disk."""

    def delete_records(self, partition: Partition, offset: int, /) -> int | None:
        """Raise the log start offset (-1: to the high watermark); what it is then, None if that is
        out of range."""


class Directory(Protocol):
    """The directory of the logs."""

    @property
    def path(self) -> str: ...


class TierLookups(Protocol):
    """What is known of logs whose older part only the remote store has."""

    @property
    def is_there(self) -> bool:
        """Whether there is a store."""

    def end_offset(self, partition: Partition, /) -> int:
        """One past the last offset that is in the store; negative: nothing is."""

    def is_older_here(self, partition: Partition, timestamp: int, /) -> bool:
        """Whether a lookup by this time has to go to the store first."""

    def max_timestamp(self, partition: Partition, /) -> int:
        """The largest timestamp of what only the store has; negative: it has none."""

    def find_time(
        self, partition: Partition, timestamp: int, on_done: Callable[[int, int, int], None], /
    ) -> None:
        """Look for the first record that isn't older, among what only the store has."""
