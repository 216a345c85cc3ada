"""Requests about committed offsets in a `GroupCoordinator`: committed, fetched, deleted.

    OffsetCommit       counts when the log has it
    TxnOffsetCommit    counts when the marker of its transaction says that it is committed (KIP-98)

Rules of this file:
* A group lets in who commits: `on_commit` of either kind. Somebody who is no member may commit in
  a group without members; that makes the group, if there is none.
* Offsets are in the store when the log has them: `OffsetStore` says no more than the log.

Source: Kafka's OffsetMetadataManager.
"""

from __future__ import annotations

from shmbroker.groups import group_log
from shmbroker.groups.classic.embedded_protocol import CONSUMER
from shmbroker.groups.classic.states import EMPTY
from shmbroker.groups.consumer.group import MEMBER_EPOCH_FROM, ConsumerGroup
from shmbroker.groups.offset_store import NO_EXPIRY, OffsetStore
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.group_log import CommitBatch
    from shmbroker.groups.group_table import AnyGroup, GroupShard, GroupTable
    from shmbroker.groups.offset_store import Committed
    from shmbroker.groups.removal import Removal
    from shmbroker.replica.partition import Partition
    from shmbroker.settings.broker_config import BrokerConfig

    CommitRow = tuple[str, bytes, dict[str, Any]]
    """topic, topic id, the request's row of a partition"""
    FetchedRow = tuple[int, int, Committed | None]
    """partition, error code, what is committed"""

NO_RETENTION = -1
TIME_MAX = 2**63 - 1


class OffsetCoordinator:
    """The part of a coordinator that knows of committed offsets."""

    def __init__(self, table: GroupTable, removal: Removal, config: BrokerConfig) -> None:
        self._table = table
        self._removal = removal
        self._metadata_bytes_max = config["offset.metadata.max.bytes"]

    # ── committing ──────────────────────────────────────────────────────────────────────────────

    def commit(self, body: dict[str, Any], version: int, offsets: list[CommitRow]) -> list[int]:
        """OffsetCommit: an error code for each offset."""
        table, group_id = self._table, body["group_id"]
        generation_id = body["generation_id_or_member_epoch"]
        now_ms = table.steady_ms()
        group, error = table.find(group_id, may_be_nameless=True)
        is_new = group is None
        if not error and group is None:
            if generation_id < 0:
                group = table.new_classic(table.shard_here(group_id), group_id)
            elif version >= 9:
                error = error_codes.GROUP_ID_NOT_FOUND
            else:
                error = error_codes.ILLEGAL_GENERATION
        if isinstance(group, ConsumerGroup):
            error = group.on_commit(body["member_id"], generation_id, version)
        elif group is not None:
            error = group.on_commit(
                body["member_id"], body["group_instance_id"], generation_id, now_ms
            )
        if error or group is None:
            return [error] * len(offsets)
        retention_ms = body["retention_time_ms"]
        expiry_ms = NO_EXPIRY
        if retention_ms != NO_RETENTION:
            expiry_ms = min(max(table.now_ms() + retention_ms, 0), TIME_MAX)
        return self._commit(group, is_new, offsets, expiry_ms, None)

    def commit_in_transaction(self, body: dict[str, Any], offsets: list[CommitRow]) -> list[int]:
        """TxnOffsetCommit: an error code for each offset."""
        table, group_id, member_id = self._table, body["group_id"], body["member_id"]
        generation_id = body["generation_id"]
        now_ms = table.steady_ms()
        group, error = table.find(group_id)
        is_new = group is None
        if not error and group is None:
            if generation_id < 0:
                group = table.new_classic(table.shard_here(group_id), group_id)
            else:
                error = error_codes.ILLEGAL_GENERATION
        instance_id = body["group_instance_id"]
        if isinstance(group, ConsumerGroup):
            # Before KIP-447 producers name no member.
            if generation_id >= 0 or member_id or instance_id is not None:
                error = group.on_commit(member_id, generation_id, MEMBER_EPOCH_FROM)
            if error == error_codes.STALE_MEMBER_EPOCH:
                error = error_codes.ILLEGAL_GENERATION
        elif group is not None:
            error = group.on_commit(
                member_id, instance_id, generation_id, now_ms, is_transactional=True
            )
        if error or group is None:
            return [error] * len(offsets)
        producer = body["producer_id"], body["producer_epoch"]
        return self._commit(group, is_new, offsets, NO_EXPIRY, producer)

    def on_marker(self, partition: Partition, producer_id: int, is_commit: bool) -> None:
        """The marker of a transaction is in a partition's log: what it committed counts."""
        table = self._table
        shard = table.shards[partition.partition]
        assert shard.partition is partition and shard.is_active
        for group_id in shard.store.end_pending(producer_id, is_commit):
            group = table.groups.get(group_id)
            if group is not None:
                table.settle(group)  # nothing may be left of it

    def _commit(
        self,
        group: AnyGroup,
        is_new: bool,
        offsets: list[CommitRow],
        expiry_ms: int,
        producer: tuple[int, int] | None,
    ) -> list[int]:
        """Store offsets, of a transaction if it has a producer (id, epoch)."""
        table, group_id = self._table, group.group_id
        now_ms = table.now_ms()
        errors, accepted = [], []
        records: list[group_log.Record] = []
        for topic, topic_id, row in offsets:
            metadata = row["committed_metadata"] or ""
            if len(metadata) > self._metadata_bytes_max:
                errors.append(error_codes.OFFSET_METADATA_TOO_LARGE)
                continue
            errors.append(0)
            committed: Committed = (
                row["committed_offset"],
                row["committed_leader_epoch"],
                metadata,
                now_ms,
                expiry_ms,
                topic_id,
            )
            index = row["partition_index"]
            key = group_log.offset_key(group_id, topic, index)
            records.append((key, group_log.offset_value(committed)))
            accepted.append((topic, index, committed))
        if records:
            error = table.append(group.owner, records, producer, is_divisible=True)
            if error:
                return [each or error for each in errors]
            if is_new:
                table.add(group)
            store: OffsetStore = group.owner.store
            end_offset = group.owner.partition.log.log_end_offset
            for topic, index, committed in accepted:
                if producer is None:
                    store.put(group_id, topic, index, committed)
                else:
                    store.put_pending(
                        producer[0], end_offset - 1, group_id, topic, index, committed
                    )
        return errors

    def commit_one(
        self,
        group: AnyGroup,
        batch: CommitBatch,
        topic: str,
        partition: int,
        committed: Committed,
    ) -> int:
        """A commit of one partition that was let in and comes again: the error code."""
        shard: GroupShard = group.owner
        error = batch.append(shard.partition, committed[0], committed[1], committed[3])
        self._table.on_appended(shard.partition)
        if not error:
            shard.store.put(group.group_id, topic, partition, committed)
        return error

    # ── fetching and deleting ───────────────────────────────────────────────────────────────────

    def fetch(
        self,
        group_id: str,
        wanted: list[tuple[str, list[int]]] | None,
        require_stable: bool,
        member_id: str | None = None,
        member_epoch: int = -1,
    ) -> tuple[int, list[tuple[str, list[FetchedRow]]]]:
        """OffsetFetch: (error code, [(topic, rows)]); all that there is if `wanted` is None."""
        group, error = self._table.find(group_id, may_be_nameless=True)
        if not error and isinstance(group, ConsumerGroup):
            error = group.on_fetch(member_id, member_epoch)
        if error:
            return error, []
        store = group.owner.store if group is not None else OffsetStore()
        known = store.of_group(group_id)
        if wanted is None:
            by_topic: dict[str, list[int]] = {}
            for topic, partition in known:
                by_topic.setdefault(topic, []).append(partition)
            wanted = list(by_topic.items())
        unstable = error_codes.UNSTABLE_OFFSET_COMMIT
        found = []
        for topic, partitions in wanted:
            rows: list[FetchedRow] = []
            for partition in partitions:
                if require_stable and store.is_unstable(group_id, topic, partition):
                    rows.append((partition, unstable, None))
                else:
                    rows.append((partition, 0, known.get((topic, partition))))
            found.append((topic, rows))
        return 0, found

    def delete_offsets(
        self, group_id: str, offsets: list[tuple[str, int]]
    ) -> tuple[int, list[int]]:
        """OffsetDelete: (error code of all, error code of each)."""
        group, error = self._table.find(group_id)
        if error or group is None:
            return error or error_codes.GROUP_ID_NOT_FOUND, []
        if group.state != EMPTY and group.protocol_type != CONSUMER:
            return error_codes.NON_EMPTY_GROUP, []
        errors = [
            error_codes.GROUP_SUBSCRIBED_TO_TOPIC if group.is_subscribed(topic) else 0
            for topic, _ in offsets
        ]
        store: OffsetStore = group.owner.store
        gone = [
            (group_id, topic, partition)
            for (topic, partition), refused in zip(offsets, errors, strict=True)
            if not refused and store.has(group_id, topic, partition)
        ]
        if gone:
            error = self._removal.remove_offsets(group.owner, gone)
            if error:
                return error, []
        return 0, errors
