"""Members of groups in a simulated family: of the classic protocol, and of the new one (KIP-848).

They join, read what they are given, commit, and join again when they are told to. Which partitions
they have goes into the history.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable

from shmbroker.wire import codec, error_codes
from tests.simulation.family.clients import (
    FamilyClient,
    check_retried,
    fetch_body,
    records_of,
)
from tests.simulation.family.history import Place, Seen
from tests.simulation.family.network import Body, Disconnected, Network, Script, Wait

REJOINED = frozenset(
    (
        error_codes.ILLEGAL_GENERATION,
        error_codes.REBALANCE_IN_PROGRESS,
        error_codes.UNKNOWN_MEMBER_ID,
        error_codes.MEMBER_ID_REQUIRED,
        error_codes.STALE_MEMBER_EPOCH,
    )
)
SESSION_MS = 6000
MODERN_SESSION_MS = 3000
"""The family's group.consumer.session.timeout.ms."""
REBALANCE_MS = 3000


class Consumer(FamilyClient):
    """A member of a group that reads all partitions of its topics, with the classic protocol."""

    commit_version = 7

    def __init__(
        self, network: Network, name: str, seen: Seen, group: str, topics: list[str]
    ) -> None:
        self.group = group
        self.topics = topics
        self.member_id = ""
        self.generation = -1
        self.coordinator = -1
        self.reads_until = 0.0
        super().__init__(network, name, seen)

    def script(self) -> Script:
        while not self.is_told_to_end:
            try:
                if self.coordinator < 0:
                    yield from self._find()
                    continue
                places = yield from self._join()
                if places is not None:
                    yield from self._serve(places)
            except Disconnected:
                self.coordinator = -1
                yield self.random.uniform(0.01, 0.1)
        if self.member_id and self.coordinator >= 0:
            body = {"group_id": self.group, "members": [{"member_id": self.member_id}]}
            try:
                yield from self.ask(self.coordinator, "LeaveGroup", 4, body)
            except Disconnected:
                pass

    def _find(self) -> Generator[Wait, None, None]:
        body = {"key": self.group, "key_type": 0}
        answer = yield from self.ask(self.any_port(), "FindCoordinator", 3, body)
        if answer["error_code"]:
            check_retried(answer["error_code"], "FindCoordinator")
            yield 0.1
            return
        self.coordinator = answer["port"]

    def join_anew(self) -> None:
        """The coordinator doesn't know it any more."""
        self.member_id = ""

    def _is_well(self, error: int, what: str) -> Generator[Wait, None, bool]:
        """Whether there was no error; else what a member does about it is done."""
        if error == 0:
            return True
        if error in (error_codes.UNKNOWN_MEMBER_ID, error_codes.GROUP_ID_NOT_FOUND):
            self.join_anew()
        elif error not in REJOINED:
            check_retried(error, what)
            if error != error_codes.COORDINATOR_LOAD_IN_PROGRESS:
                self.coordinator = -1
            yield self.random.uniform(0.02, 0.1)
        return False

    def _join(self) -> Generator[Wait, None, list[Place] | None]:
        """Join and sync; the partitions that it is given, None if that came to nothing."""
        metadata = b"\x00\x01" + codec.encode(
            "ConsumerProtocolSubscription", 1, {"topics": self.topics, "owned_partitions": []}
        )
        body = {
            "group_id": self.group,
            "session_timeout_ms": SESSION_MS,
            "rebalance_timeout_ms": REBALANCE_MS,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}],
        }
        answer = yield from self.ask(self.coordinator, "JoinGroup", 7, body)
        if answer["error_code"] == error_codes.MEMBER_ID_REQUIRED:
            self.member_id = answer["member_id"]
            return None
        if not (yield from self._is_well(answer["error_code"], "JoinGroup")):
            return None
        self.member_id, self.generation = answer["member_id"], answer["generation_id"]
        assignments: list[Body] = []
        if answer["leader"] == self.member_id:
            yield from self.look_up(self.topics)
            members = sorted(row["member_id"] for row in answer["members"])
            assignments = self._assignments(members)
        body = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.member_id,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "assignments": assignments,
        }
        answer = yield from self.ask(self.coordinator, "SyncGroup", 5, body)
        if not (yield from self._is_well(answer["error_code"], "SyncGroup")):
            return None
        if not answer["assignment"]:
            return []
        found, _ = codec.decode("ConsumerProtocolAssignment", 1, answer["assignment"][2:])
        places = [
            (row["topic"], partition)
            for row in found["assigned_partitions"]
            for partition in row["partitions"]
        ]
        self.seen.on_assigned(self.group, self.generation, self.member_id, places)
        self.say(f"generation {self.generation}: {places}")
        return places

    def _assignments(self, members: list[str]) -> list[Body]:
        places = sorted(place for place in self.leaders if place[0] in self.topics)
        rows = []
        for at, member in enumerate(members):
            by_topic: dict[str, list[int]] = {}
            for topic, partition in places[at :: len(members)]:
                by_topic.setdefault(topic, []).append(partition)
            body = {
                "assigned_partitions": [
                    {"topic": topic, "partitions": partitions}
                    for topic, partitions in by_topic.items()
                ],
                "user_data": None,
            }
            encoded = b"\x00\x01" + codec.encode("ConsumerProtocolAssignment", 1, body)
            rows.append({"member_id": member, "assignment": encoded})
        return rows

    def _serve(self, places: list[Place]) -> Generator[Wait, None, None]:
        """Read, commit and beat, until the group changes."""
        offsets = yield from self._committed(places)
        if offsets is None:
            return
        while not self.is_told_to_end:
            body = {
                "group_id": self.group,
                "generation_id": self.generation,
                "member_id": self.member_id,
            }
            answer = yield from self.ask(self.coordinator, "Heartbeat", 3, body)
            if not (yield from self._is_well(answer["error_code"], "Heartbeat")):
                return
            for place in places:
                yield from self._read(place, offsets)
            if offsets and self.random.random() < 0.5 and not (yield from self._commit(offsets)):
                return
            yield self.pause(0.05, 0.4)

    def _committed(self, places: list[Place]) -> Generator[Wait, None, dict[Place, int] | None]:
        """Where the group goes on; None if that can't be known."""
        if not places:
            return {}
        known = {place: self.seen.committed(self.group, place) for place in places}
        body = {"group_id": self.group, "topics": _by_topic(places), "require_stable": True}
        answer = yield from self.ask(self.coordinator, "OffsetFetch", 7, body)
        if not (yield from self._is_well(answer["error_code"], "OffsetFetch")):
            return None
        offsets = {}
        for topic in answer["topics"]:
            for row in topic["partitions"]:
                if not (yield from self._is_well(row["error_code"], "OffsetFetch")):
                    return None
                place = topic["name"], row["partition_index"]
                offsets[place] = max(0, row["committed_offset"])
        self.seen.on_fetched_offsets(self.group, known, offsets)
        return offsets

    def _read(self, place: Place, offsets: dict[Place, int]) -> Generator[Wait, None, None]:
        port = yield from self.leader(place)
        offset = offsets[place]
        try:
            answer = yield from self.ask(port, "Fetch", 11, fetch_body(place, offset, 20))
        except Disconnected:
            self.leaders.pop(place, None)
            return
        row = answer["responses"][0]["partitions"][0]
        if row["error_code"] == error_codes.OFFSET_OUT_OF_RANGE:
            offsets[place] = max(offset, (yield from self.start(place)))
            return
        if row["error_code"]:
            check_retried(row["error_code"], f"Fetch of {place} from {offset}")
            self.leaders.pop(place, None)
            return
        found = records_of(row, offset)
        if found:
            self.seen.on_read(place, offset, found)
            offsets[place] = found[-1][0] + 1

    def _commit(self, offsets: dict[Place, int]) -> Generator[Wait, None, bool]:
        rows: dict[str, list[Body]] = {}
        for (topic, partition), offset in offsets.items():
            row = {
                "partition_index": partition,
                "committed_offset": offset,
                "committed_metadata": "",
            }
            rows.setdefault(topic, []).append(row)
        body = {
            "group_id": self.group,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "topics": [{"name": topic, "partitions": each} for topic, each in rows.items()],
        }
        answer = yield from self.ask(self.coordinator, "OffsetCommit", self.commit_version, body)
        for topic in answer["topics"]:
            for row in topic["partitions"]:
                if not (yield from self._is_well(row["error_code"], "OffsetCommit")):
                    return False
                place = topic["name"], row["partition_index"]
                self.seen.on_committed(self.group, place, offsets[place])
        return True


def _by_topic(places: Iterable[Place]) -> list[Body]:
    rows: dict[str, list[int]] = {}
    for topic, partition in places:
        rows.setdefault(topic, []).append(partition)
    return [{"name": topic, "partition_indexes": each} for topic, each in rows.items()]


class Modern(Consumer):
    """A member of a group with the new protocol: the coordinator assigns."""

    commit_version = 9

    def __init__(
        self, network: Network, name: str, seen: Seen, group: str, topics: list[str]
    ) -> None:
        self.epoch = 0
        self.owned: list[Place] = []
        self.names: dict[bytes, str] = {}
        self.ids: dict[str, bytes] = {}
        self.is_told = False
        """Nothing was lost on the way since it was told all; else it asks for all of it again."""
        super().__init__(network, name, seen, group, topics)

    def script(self) -> Script:
        self.member_id = f"{self.name}-id"
        offsets: dict[Place, int] = {}
        while not self.is_told_to_end:
            try:
                if self.coordinator < 0:
                    yield from self._find()
                elif (yield from self._beat(self.epoch, offsets)):
                    yield from self._work(offsets)
            except Disconnected:
                self.coordinator = -1
            yield self.pause(0.02, 0.3)
        self._own([], offsets, self.scheduler.now)
        try:
            if self.coordinator >= 0:
                yield from self._beat(-1, offsets)
        except Disconnected:
            pass

    def join_anew(self) -> None:
        self.epoch = 0
        self.owned = []

    def _beat(self, epoch: int, offsets: dict[Place, int]) -> Generator[Wait, None, bool]:
        """One heartbeat, and what it asks for; whether it was well."""
        owned: dict[bytes, list[int]] = {}
        for topic, partition in self.owned:
            owned.setdefault(self.ids[topic], []).append(partition)
        rows = [{"topic_id": each, "partitions": partitions} for each, partitions in owned.items()]
        body = {
            "group_id": self.group,
            "member_id": self.member_id,
            "member_epoch": epoch,
            "rebalance_timeout_ms": REBALANCE_MS,
            "subscribed_topic_names": None if epoch and self.is_told else self.topics,
            "topic_partitions": rows,
        }
        sent_at = self.scheduler.now
        self.is_told = False
        answer = yield from self.ask(self.coordinator, "ConsumerGroupHeartbeat", 1, body)
        error = answer["error_code"]
        self.is_told = not error
        if error in (
            error_codes.UNKNOWN_MEMBER_ID,
            error_codes.FENCED_MEMBER_EPOCH,
            error_codes.GROUP_ID_NOT_FOUND,  # all of its members were silent for too long
        ):
            self.join_anew()
            self._own([], offsets, sent_at)
            return False
        if not (yield from self._is_well(error, "ConsumerGroupHeartbeat")):
            return False
        if epoch < 0:
            return False
        self.epoch = answer["member_epoch"]
        if answer["assignment"] is not None:
            places = []
            for row in answer["assignment"]["topic_partitions"]:
                while row["topic_id"] not in self.names:
                    yield from self._learn_ids()
                name = self.names[row["topic_id"]]
                places += [(name, partition) for partition in row["partitions"]]
            places.sort()
            # What it has to give up it may have been told before, in an answer that was lost: it is
            # fenced when that time is over, so nothing says how long it has the others.
            keeps_all = set(self.owned) <= set(places)
            self._own(places, offsets, sent_at, MODERN_SESSION_MS if keeps_all else 0)
            self.say(f"epoch {self.epoch}: {places}")
        else:
            self._own(self.owned, offsets, sent_at)
        return True

    def _own(
        self,
        places: list[Place],
        offsets: dict[Place, int],
        sent_at: float,
        lasts_ms: int = MODERN_SESSION_MS,
    ) -> None:
        """It has these now, and has let go of all others; for so long from `sent_at` on."""
        self.owned = places
        for place in list(offsets):
            if place not in places:
                del offsets[place]
        until = sent_at + lasts_ms / 1000
        self.seen.on_owned(self.group, self.member_id, places, until, self.scheduler.now)

    def _learn_ids(self) -> Generator[Wait, None, None]:
        body = {"topics": [{"name": topic} for topic in self.topics]}
        answer = yield from self.ask(self.any_port(), "Metadata", 12, body)
        for topic in answer["topics"]:
            if not topic["error_code"]:
                self.names[topic["topic_id"]] = topic["name"]
                self.ids[topic["name"]] = topic["topic_id"]

    def _work(self, offsets: dict[Place, int]) -> Generator[Wait, None, None]:
        new = [place for place in self.owned if place not in offsets]
        if new:
            found = yield from self._committed(new)
            if found is None:
                return
            offsets.update(found)
        for place in self.owned:
            yield from self._read(place, offsets)
        self.generation = self.epoch
        if offsets and self.random.random() < 0.5:
            yield from self._commit(offsets)
