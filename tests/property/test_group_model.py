"""Members of one group that come, go, hang, repeat themselves and are fenced, in any order.

Whatever they do: a generation never falls and has one leader, who is in it; every call is answered
once, at the latest when all have had their time; who was fenced or removed is served no more; the
timer of the group is never later than a deadline; what is stored is what is there.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from shmbroker.groups.classic.group_value import value_of
from shmbroker.groups.classic.joining import NEW_MEMBER_TIMEOUT_MS
from shmbroker.groups.classic.states import COMPLETING, EMPTY, PREPARING, STABLE
from shmbroker.groups.group_memory import ID_BYTES
from shmbroker.wire import error_codes
from tests.support.examples import examples
from tests.unit.groups.groups_at_work import REBALANCE_MS, SESSION_MS, Table

PROTOCOLS = [
    (("range", b"1"),),
    (("range", b"2"),),
    (("range", b"1"), ("sticky", b"1")),
    (("sticky", b"1"), ("range", b"1")),
]
REFUSALS = {
    error_codes.UNKNOWN_MEMBER_ID,
    error_codes.FENCED_INSTANCE_ID,
    error_codes.ILLEGAL_GENERATION,
    error_codes.REBALANCE_IN_PROGRESS,
    error_codes.INCONSISTENT_GROUP_PROTOCOL,
    error_codes.GROUP_MAX_SIZE_REACHED,
    error_codes.UNKNOWN_SERVER_ERROR,
    error_codes.MEMBER_ID_REQUIRED,
    error_codes.NOT_CONTROLLER,
}


class GroupMachine(RuleBasedStateMachine):
    ids = Bundle("ids")
    """(member id, instance id) as clients have learnt them, of members long gone as well."""

    @initialize(
        target=ids,
        delay_ms=st.sampled_from([0, 1000, 3000]),
        size_max=st.sampled_from([2, 3, 100]),
        instances=st.lists(st.sampled_from([None, "a", "b"]), max_size=4),
        syncs=st.integers(0, 4),
    )
    def begin(self, delay_ms, size_max, instances, syncs):
        """Some members are there already, and some of them have asked for their assignment."""
        self.table = Table(delay_ms, size_max)
        self.size_max = size_max
        self.calls = []
        self.generation = 0
        self.gone: set[str] = set()
        self.known: set[str] = set()
        for instance in instances:
            self.calls.append((self.table.join(instance=instance), instance))
        self.table.wait(2 * delay_ms)
        for member in list(self.table.group.members.values())[:syncs]:
            self.calls.append((self.table.sync(member.member_id), member.instance_id))
        return self.learn()

    def learn(self, instance=None):
        """What the last answers have told clients, as (member id, instance)."""
        found = []
        for call, its_instance in self.calls:
            if call.answers and not hasattr(call, "is_read"):
                call.is_read = True
                body = call.answers[0]
                assert body["error_code"] == 0 or body["error_code"] in REFUSALS
                if body.get("member_id"):
                    found.append((body["member_id"], its_instance))
        return multiple(*found)

    @rule(
        target=ids,
        instance=st.sampled_from([None, None, "a", "b"]),
        version=st.sampled_from([3, 4, 8, 9]),
        protocols=st.sampled_from(PROTOCOLS),
        rebalance_ms=st.sampled_from([0, 5000, REBALANCE_MS]),
    )
    def join_anew(self, instance, version, protocols, rebalance_ms):
        call = self.table.join(
            instance=instance, version=version, protocols=protocols, rebalance_ms=rebalance_ms
        )
        self.calls.append((call, instance))
        return self.learn()

    @rule(target=ids, who=ids, protocols=st.sampled_from(PROTOCOLS))
    def join_again(self, who, protocols):
        call = self.table.join(who[0], instance=who[1], protocols=protocols, version=9)
        self.calls.append((call, who[1]))
        if who[0] in self.gone:
            assert call.answer["error_code"] != 0
        return self.learn()

    @rule(target=ids, who=ids, error=st.sampled_from([0, 0, 0, error_codes.NOT_CONTROLLER]))
    def sync(self, who, error):
        self.table.storage_error = error
        assignments = {each: each.encode() for each in self.table.group.members}
        call = self.table.sync(who[0], assignments, instance=who[1])
        self.table.storage_error = 0
        self.calls.append((call, who[1]))
        if who[0] in self.gone:
            assert call.answer["error_code"] != 0
        return self.learn()

    @rule(who=ids, back=st.sampled_from([0, 0, 1]))
    def heartbeat(self, who, back):
        generation = self.table.group.generation_id - back
        error = self.table.heartbeat(who[0], who[1], generation)
        assert error == 0 or error in REFUSALS
        if who[0] in self.gone or back:
            assert error != 0

    @rule(who=ids)
    def commit(self, who):
        group = self.table.group
        error = self.table.commit(who[0], group.generation_id, who[1])
        if who[0] in self.gone or group.state in (COMPLETING, EMPTY):
            assert error != 0

    @rule(target=ids, who=consumes(ids), by_instance=st.booleans())
    def leave(self, who, by_instance):
        member_id = "" if by_instance and who[1] else who[0]
        (error,) = self.table.leave((member_id, who[1]))
        assert error == 0 or error in REFUSALS
        return self.learn()

    @rule(target=ids, ms=st.sampled_from([1, 1000, 5000, SESSION_MS, REBALANCE_MS]))
    def wait(self, ms):
        self.table.wait(ms)
        return self.learn()

    @rule(target=ids)
    def coordinator_dies(self):
        """Another one goes on from what was stored; who was in between joins anew."""
        old = self.table
        for call, _ in self.calls:
            call.is_read = True
        self.calls = []
        self.table = Table(0, self.size_max)
        self.table.ids, self.table.now_ms = old.ids, old.now_ms
        self.table.stored = old.stored
        if old.stored:
            self.table.group.replay(old.stored[-1])
            self.table.run(self.table.group.on_loaded(self.table.now_ms))
        self.generation = self.table.group.generation_id
        self.known = set(self.table.group.members)
        # Going is stored with the next generation: who went just before is back until it expires.
        self.gone -= self.known
        return multiple()

    @invariant()
    def holds(self) -> None:
        if not hasattr(self, "table"):
            return
        group = self.table.group
        assert group.generation_id >= self.generation
        self.generation = group.generation_id
        members = group.members
        # Whoever was in it and is not any more never comes back under that id.
        self.gone |= self.known - set(members)
        assert not self.gone & set(members)
        self.known = set(members)
        assert (group.leader_id in members) if members else group.leader_id is None
        assert (group.state == EMPTY) <= (not members)
        assert (group.state in (COMPLETING, STABLE)) <= bool(members)
        assert group.pending_syncs <= set(members)
        assert not set(group.pending_joins) & set(members)
        assert group.awaiting_join == sum(m.join_call is not None for m in members.values())
        assert set(group.static_members.values()) == {
            each.member_id for each in members.values() if each.instance_id is not None
        }
        support: dict[str, int] = {}
        for member in members.values():
            assert (member.join_call is not None) <= (group.state == PREPARING)
            assert (member.sync_call is not None) <= (group.state == COMPLETING)
            for name, _ in member.protocols:
                support[name] = support.get(name, 0) + 1
        assert group.support.counts == support
        assert group._member_bytes == sum(member.held_bytes for member in members.values())
        assert group.pending_bytes == sum(len(each) + ID_BYTES for each in group.pending_joins)
        if not members and not group.pending_joins:
            assert group.held_bytes == 0
        if group.state in (COMPLETING, STABLE):
            assert support[group.protocol_name] == len(members)
        deadlines = [group.join_deadline_ms, group.sync_deadline_ms]
        deadlines += group.pending_joins.values()
        deadlines += [member.deadline_ms for member in members.values()]
        assert group.wake_ms <= min(deadlines)
        parked = {id(m.join_call) for m in members.values()} | {
            id(m.sync_call) for m in members.values()
        }
        for call, _ in self.calls:
            assert len(call.answers) == (0 if id(call) in parked else 1)
        if group.state == STABLE:
            # What a successor would begin with is what is there.
            assert self.table.stored[-1] == value_of(group) | {
                "current_state_timestamp": self.table.stored[-1]["current_state_timestamp"]
            }

    def teardown(self) -> None:
        """With nobody heard any more, all end: every call has its answer, and nobody is left."""
        if hasattr(self, "table"):
            self.table.wait(NEW_MEMBER_TIMEOUT_MS + 10 * REBALANCE_MS)
            assert all(len(call.answers) == 1 for call, _ in self.calls)
            assert self.table.group.state == EMPTY


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
