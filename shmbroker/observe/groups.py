"""What brokers say of groups: states, members, committed offsets. The one thing that is asked for.

Rules of this file:
* They are asked by the control socket: who may look at the family's memory may know of all groups,
  whatever listeners there are and whom they let in.
* A thread of its own asks, every `ask_s` at most, and only while somebody wants to know: whoever
  looks gets what was said last.
* Three requests to a broker for up to GROUPS_ASKED groups, which the broker answers between others.
  Of more than GROUPS_MAX groups the first by name are shown.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from shmbroker import clock, unix
from shmbroker.client.connection import Connection
from shmbroker.errors import Fault
from shmbroker.ipc import control_socket
from shmbroker.observe.snapshot import Group, Groups, Lag
from shmbroker.wire.api_keys import (
    CONSUMER_GROUP_DESCRIBE,
    DESCRIBE_GROUPS,
    LIST_GROUPS,
    OFFSET_FETCH,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.wire.codec import Message

logger = logging.getLogger(__name__)

ASK_S = 10.0
FIRST_WAIT_S = 2.0
"""How long the first who wants to know waits for an answer."""
ANSWER_S = 5.0
GROUPS_ASKED = 100
GROUPS_MAX = 1000
CLIENT_ID = "shmbroker-observer"
_CONSUMER = "consumer"
_VERSIONS = {
    LIST_GROUPS: 5,
    OFFSET_FETCH: 8,
    DESCRIBE_GROUPS: 5,
    CONSUMER_GROUP_DESCRIBE: 0,
}


class Told(NamedTuple):
    """What the coordinator of a group says."""

    kind: str
    state: str
    members: int
    coordinator: int
    committed: Mapping[tuple[str, int], int]
    """Committed offsets by topic and partition."""


def _connected(data_directory: str, broker_id: int) -> Connection:
    connected = unix.connect(os.path.join(data_directory, unix.CONTROL_SOCKET), ANSWER_S)
    client_id = control_socket.client_id_for(CLIENT_ID, broker_id)
    return Connection(connected, f"broker {broker_id}", client_id, _VERSIONS)


def ask_once(data_directory: str, broker_id: int, api_key: int, body: Message) -> Message:
    """What a broker answers to one request about groups; OSError, ProtocolFault where it does
    not."""
    connection = _connected(data_directory, broker_id)
    try:
        return connection.ask(api_key, body)
    finally:
        connection.close()


class GroupAsker:
    """`want` what is known; `look` shows it."""

    def __init__(self, data_directory: str, brokers: Collection[int]) -> None:
        """brokers: their ids."""
        self._data_directory = data_directory
        self._brokers = brokers
        self.ask_s = ASK_S
        """The least time between two rounds."""
        self._connections: dict[int, Connection] = {}
        self._wanted = threading.Event()
        self._told = threading.Event()
        self._asked_at = -ASK_S
        self.groups: dict[str, Told] = {}
        self.failed = 0

    def start(self) -> None:
        """Begin to answer wants."""
        threading.Thread(target=self._run, name="groups", daemon=True).start()

    def want(self) -> None:
        """Ask the brokers, unless they were asked lately; only the first caller waits for it."""
        self._wanted.set()
        self._told.wait(FIRST_WAIT_S)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            rest_s = self._asked_at + self.ask_s - clock.monotonic()
            if rest_s > 0:
                clock.sleep(rest_s)
            self._wanted.clear()
            self.ask()

    def ask(self) -> None:
        """Ask all brokers, once. What one that does not answer has coordinated is not known."""
        found: dict[str, Told] = {}
        for broker_id in self._brokers:
            try:
                self._ask_one(broker_id, found)
            except (OSError, Fault) as fault:
                self.failed += 1
                logger.debug("broker %d does not say what its groups do: %s", broker_id, fault)
                connection = self._connections.pop(broker_id, None)
                if connection is not None:
                    connection.close()
        self.groups = found
        self._asked_at = clock.monotonic()
        self._told.set()

    def _ask_one(self, broker_id: int, found: dict[str, Told]) -> None:
        connection = self._connections.get(broker_id)
        if connection is None:
            connection = _connected(self._data_directory, broker_id)
            self._connections[broker_id] = connection
        listed = connection.ask(LIST_GROUPS, {"states_filter": [], "types_filter": []})
        rows = sorted(listed["groups"], key=lambda row: str(row["group_id"]))
        for at in range(0, min(len(rows), GROUPS_MAX), GROUPS_ASKED):
            some = rows[at : at + GROUPS_ASKED]
            members = _members(connection, some)
            asked = [{"group_id": row["group_id"], "topics": None} for row in some]
            answer = connection.ask(OFFSET_FETCH, {"groups": asked, "require_stable": False})
            offsets = {
                row["group_id"]: {
                    (topic["name"], partition["partition_index"]): partition["committed_offset"]
                    for topic in row["topics"]
                    for partition in topic["partitions"]
                    if partition["committed_offset"] >= 0 and not partition["error_code"]
                }
                for row in answer["groups"]
                if not row["error_code"]
            }
            for row in some:
                name = row["group_id"]
                found[name] = Told(
                    row["group_type"].lower(),
                    row["group_state"].lower(),
                    members.get(name, 0),
                    broker_id,
                    offsets.get(name, {}),
                )

    def look(self, now_s: float, end_offset: Callable[[str, int], int | None]) -> Groups:
        """What is known; end_offset: of a partition's log, now."""
        if not self._told.is_set():
            return Groups(None, self.failed, ())
        found = [
            Group(
                name,
                each.kind,
                each.state,
                each.members,
                each.coordinator,
                [
                    Lag(topic, partition, offset, end_offset(topic, partition))
                    for (topic, partition), offset in sorted(each.committed.items())
                ],
            )
            for name, each in sorted(self.groups.items())
        ]
        return Groups(max(0.0, now_s - self._asked_at), self.failed, found)


def _members(connection: Connection, rows: list[dict[str, str]]) -> dict[str, int]:
    of_consumers = [row["group_id"] for row in rows if row["group_type"] == _CONSUMER]
    of_classic = [row["group_id"] for row in rows if row["group_type"] != _CONSUMER]
    found: dict[str, int] = {}
    for api_key, names, field in (
        (CONSUMER_GROUP_DESCRIBE, of_consumers, "group_ids"),
        (DESCRIBE_GROUPS, of_classic, "groups"),
    ):
        if names:
            body = {field: names, "include_authorized_operations": False}
            for row in connection.ask(api_key, body)["groups"]:
                found[row["group_id"]] = len(row["members"])
    return found
