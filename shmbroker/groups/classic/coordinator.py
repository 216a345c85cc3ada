"""Requests of the classic protocol in a `GroupCoordinator`: who joins, syncs, beats and leaves.

Rules of this file:
* JoinGroup and SyncGroup are answered through `call.reply(body)`, now or when the group says so;
  the other requests return their answers.
* A group of the new protocol may have members of this one: its own coordinator answers them. When
  nobody is in it, it may become a classic group.
* While a shard loads, its groups get COORDINATOR_LOAD_IN_PROGRESS, but heartbeats 0, so that nobody
  rejoins for it.
* A heartbeat in a stable group gets a standing answer (`shm.standing`).

Source: Kafka's GroupCoordinatorService, GroupMetadataManager.
"""

from __future__ import annotations

from shmbroker.groups.classic.answers import join_refusal
from shmbroker.groups.classic.joining import on_join
from shmbroker.groups.classic.states import STABLE
from shmbroker.groups.classic.syncing import on_sync
from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.wire import error_codes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.groups.caller import Caller
    from shmbroker.groups.classic.execution import Execution
    from shmbroker.groups.classic.group import ClassicGroup
    from shmbroker.groups.consumer.coordinator import ConsumerCoordinator
    from shmbroker.groups.group_table import GroupTable
    from shmbroker.settings.broker_config import BrokerConfig


class ClassicCoordinator:
    """The part of a coordinator that knows of `ClassicGroup`; `consumers` knows of the others."""

    def __init__(
        self,
        table: GroupTable,
        execution: Execution,
        consumers: ConsumerCoordinator,
        config: BrokerConfig,
    ) -> None:
        self._table = table
        self._execution = execution
        self._consumers = consumers
        self._session_timeout_ms_min = config["group.min.session.timeout.ms"]
        self._session_timeout_ms_max = config["group.max.session.timeout.ms"]

    def join(self, call: Caller, body: dict[str, Any], client_id: str, client_host: str) -> None:
        """JoinGroup; the call is answered when the rebalance is over."""
        table, group_id, member_id = self._table, body["group_id"], body["member_id"]
        group, error = table.find(group_id)
        timeout = body["session_timeout_ms"]
        if not group_id:
            error = error_codes.INVALID_GROUP_ID
        elif not self._session_timeout_ms_min <= timeout <= self._session_timeout_ms_max:
            error = error_codes.INVALID_SESSION_TIMEOUT
        elif not error and group is None and member_id:
            error = error_codes.UNKNOWN_MEMBER_ID
        if isinstance(group, ConsumerGroup):
            if not error and group.members:
                version = call.api_version
                call.reply(self._consumers.join(group, body, version, client_id, client_host))
                return
            if not error:  # Nobody is in it: it may become a classic one.
                error = error_codes.UNKNOWN_MEMBER_ID if member_id else table.forget(group)
            group = None
        if error:
            call.reply(join_refusal(error, member_id))
            return
        is_new = group is None
        if group is None:
            group = table.new_classic(table.shard_here(group_id), group_id)
        effects = on_join(
            group,
            call,
            body,
            call.api_version,
            client_id,
            client_host,
            table.steady_ms(),
            table.make_room,
        )
        if is_new and group.members:
            table.add(group)
        elif is_new and group.pending_joins:
            table.add_unborn(group)
        self._execution.run(group, effects)

    def sync(self, call: Caller, body: dict[str, Any]) -> None:
        """SyncGroup; the call is answered when the leader's assignment is stored."""
        table = self._table
        group, error = table.find(body["group_id"])
        if group is None:
            call.reply({"error_code": error or error_codes.UNKNOWN_MEMBER_ID})
            return
        if isinstance(group, ConsumerGroup):
            call.reply(self._consumers.sync(group, body))
            return
        assignments = body["assignments"]
        if assignments and not table.make_room(sum(len(row["assignment"]) for row in assignments)):
            call.reply({"error_code": error_codes.COORDINATOR_NOT_AVAILABLE})
            return
        effects = on_sync(
            group,
            call,
            body["member_id"],
            body["group_instance_id"],
            body["generation_id"],
            body["protocol_type"],
            body["protocol_name"],
            assignments,
        )
        self._execution.run(group, effects)

    def heartbeat(self, body: dict[str, Any]) -> tuple[int, tuple[int, int] | None]:
        """Heartbeat: (error code, the grant to answer so again)."""
        table = self._table
        group, error = table.find(body["group_id"])
        if group is None:
            if error == error_codes.COORDINATOR_LOAD_IN_PROGRESS:
                return 0, None
            return error or error_codes.UNKNOWN_MEMBER_ID, None
        if isinstance(group, ConsumerGroup):
            return self._consumers.beat(group, body), None
        member_id = body["member_id"]
        error = group.on_heartbeat(
            member_id, body["group_instance_id"], body["generation_id"], table.steady_ms()
        )
        if error or group.state != STABLE:
            return error, None
        return 0, table.grants.grant(group, member_id)

    def leave(self, group_id: str, leaving: list[tuple[str, str | None]]) -> tuple[int, list[int]]:
        """LeaveGroup: (error code of all, error code of each)."""
        group, error = self._table.find(group_id)
        if error:
            return error, []
        if group is None:
            return 0, [error_codes.UNKNOWN_MEMBER_ID] * len(leaving)
        if isinstance(group, ConsumerGroup):
            return 0, self._consumers.leave(group, leaving)
        errors, effects = group.on_leave(leaving, self._table.steady_ms())
        self._execution.run(group, effects)
        return 0, errors

    def run_due(self, group: ClassicGroup, now_ms: int) -> None:
        """End what the group has waited for long enough."""
        if group.grants:
            self._table.grants.see_silent(group, now_ms)
        self._execution.run(group, group.on_time(now_ms))
