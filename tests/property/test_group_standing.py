"""Standing answers of heartbeats: as long as one stands, the group itself would say the same."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.examples import examples
from tests.unit.groups.coordinator_at_work import Broker

pytestmark = pytest.mark.thorough

SESSION_MS = 10_000
ENTRIES = 6


class Standing:
    """`StandingAnswers` by a clock of the test's own."""

    def __init__(self, now):
        self.now = now
        self.values = {}
        self.used = {}
        self.count = 0

    def grant(self):
        free = [word for word in range(ENTRIES) if not self.values.get(word)]
        if not free:
            return None
        self.count += 1
        self.values[free[0]] = self.count
        self.used[free[0]] = self.now()
        return free[0], self.count

    def value(self, word):
        return self.values[word]

    def withdraw(self, word):
        assert self.values[word]
        self.values[word] = 0

    def idle_ms(self, word):
        return self.now() - self.used[word]


class StandingMachine(RuleBasedStateMachine):
    @initialize()
    def start(self):
        self.directory = tempfile.TemporaryDirectory()
        self.broker = Broker(Path(self.directory.name))
        self.broker.standing = self.standing = Standing(lambda: self.broker.now_ms)
        self.broker.restart()
        self.calls = []
        self.members = {}
        self.granted = {}
        self.seen = {}

    def teardown(self):
        if hasattr(self, "directory"):
            for partition in self.broker.partitions:
                partition.log.close(clean=False)
            self.directory.cleanup()

    def settle(self):
        """Take the members and generations that were told."""
        for call, group in self.calls:
            for answer in call.answers:
                if answer["error_code"] == 0:
                    self.members[answer["member_id"]] = group, answer["generation_id"]
                    self.seen[answer["member_id"]] = self.broker.now_ms
        self.calls = [(call, group) for call, group in self.calls if not call.answers]

    @rule(
        group=st.sampled_from("ab"),
        which=st.integers(0, 5),
        instance=st.sampled_from([None, None, "i", "j"]),
    )
    def join(self, group, which, instance):
        known = [member for member, (of, _) in self.members.items() if of == group]
        member = known[which] if which < len(known) and instance is None else ""
        call = self.broker.join(group, member, group_instance_id=instance)
        self.calls.append((call, group))
        self.broker.wait(0)
        self.settle()

    @rule(which=st.integers(0, 5))
    def sync(self, which):
        for member in list(self.members)[which : which + 1]:
            group, generation = self.members[member]
            self.broker.sync(member, group, generation)

    @rule()
    def sync_all(self):
        for member, (group, generation) in list(self.members.items()):
            self.broker.sync(member, group, generation)

    @rule(group=st.sampled_from("ab"))
    def become_stable(self, group):
        """Everybody joins again, syncs, and is granted what there is to grant."""
        for member, (of, _) in list(self.members.items()):
            if of == group:
                self.calls.append((self.broker.join(group, member), group))
        self.broker.wait(0)
        self.settle()
        self.sync_all()
        for which in range(len(self.members)):
            self.heartbeats(which, stays_away=True)

    @rule(which=st.integers(0, 5))
    def leave(self, which):
        for member in list(self.members)[which : which + 1]:
            self.broker.groups.classics.leave(self.members[member][0], [(member, None)])

    @rule(ms=st.sampled_from([1, 3000, 3000, 9000, 25_000]))
    def wait(self, ms):
        alive = [
            (member, self.broker.groups.groups[group])
            for member, (group, _, word, value) in self.granted.items()
            if self.standing.values[word] == value
            and self.broker.now_ms + ms - self.seen[member] < SESSION_MS
        ]
        self.broker.wait(ms)
        self.settle()
        assert all(member in group.members for member, group in alive)

    @rule(which=st.integers(0, 5), stays_away=st.booleans())
    def heartbeats(self, which, stays_away):
        """One that the coordinator sees, then those that are answered for it."""
        for member in list(self.members)[which : which + 1]:
            group, generation = self.members[member]
            if self.broker.heartbeat(member, group, generation) == 0:
                self.seen[member] = self.broker.now_ms
                if self.broker.grant is not None:
                    self.granted[member] = (group, generation, *self.broker.grant)
        if stays_away:
            return
        for member, (_, _, word, value) in self.granted.items():
            if self.standing.values[word] == value:
                self.standing.used[word] = self.seen[member] = self.broker.now_ms

    @rule(rounds=st.integers(1, 8))
    def stay_quiet(self, rounds):
        """Heartbeats that are all answered elsewhere, for longer than a session."""
        for _ in range(rounds):
            self.wait(3000)
            self.heartbeats(99, stays_away=False)

    @rule()
    def restart(self):
        self.broker.groups.close()
        assert not any(self.standing.values.values())
        self.broker.restart()

    @invariant()
    def what_stands_is_true(self):
        for member, (group_id, generation, word, value) in getattr(self, "granted", {}).items():
            if self.standing.values[word] != value:
                continue
            group = self.broker.groups.groups[group_id]
            assert group.state == "Stable"
            assert generation == group.generation_id
            assert member in group.members
            # Whoever was answered lately is still a member; nobody stays for ever.
            silent_ms = self.broker.now_ms - self.seen[member]
            assert silent_ms <= SESSION_MS

    @invariant()
    def nobody_is_lost_who_was_answered(self):
        for member, (_, _, word, value) in getattr(self, "granted", {}).items():
            if self.standing.values[word] == value:
                group = self.broker.groups.groups[self.granted[member][0]]
                assert group.members[member].deadline_ms >= self.seen[member]


TestStanding = StandingMachine.TestCase
TestStanding.settings = settings(max_examples=examples(100), stateful_step_count=40, deadline=None)
