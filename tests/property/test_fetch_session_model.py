"""A client with a fetch session against the partitions as they are: it sees what all would show.

The model is a handful of partitions that get records, lose old ones, vanish, come back and fail.
The client follows KIP-227: it names what changed, and takes for unchanged what no answer names.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shmbroker.gateway.fetch_session import PARAMETERS, FetchSessions
from shmbroker.ids import partition_key
from shmbroker.ipc.operation_layout import READ_PARTITION
from tests.support.examples import examples

KEYS = [("a", 0), ("a", 1), ("b", 0)]
some_key = st.sampled_from(KEYS)
UNKNOWN = 3
FENCED = 74

Telling = dict[Any, tuple[int, int, int, bool]]
"""Error, high watermark, log start offset, whether there are records."""


class SessionMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.exists = dict.fromkeys(KEYS, True)
        self.failing: set[Any] = set()
        self.logs = {key: [0, 0] for key in KEYS}  # log start offset, high watermark
        self.wanted: dict[Any, int] = {}
        self.sent: dict[Any, int] = {}
        self.seen: Telling = {}
        self.sessions = FetchSessions(range(1, 100), 0, 10)
        self.session: Any = None

    # ── the partitions ──────────────────────────────────────────────────────────────────────────

    @rule(key=some_key, count=st.integers(1, 3))
    def append(self, key: Any, count: int) -> None:
        self.logs[key][1] += count

    @rule(key=some_key)
    def delete_records(self, key: Any) -> None:
        start, end = self.logs[key]
        self.logs[key][0] = min(start + 1, end)

    @rule(key=some_key)
    def vanish_or_come_back(self, key: Any) -> None:
        """Come back empty, as a topic that is made anew."""
        self.exists[key] = not self.exists[key]
        self.logs[key] = [0, 0]

    @rule(key=some_key)
    def fail_or_recover(self, key: Any) -> None:
        self.failing ^= {key}

    def locate(self, key: Any) -> bytes | int:
        return partition_key(key[0].encode() * 16, key[1]) if self.exists[key] else UNKNOWN

    def truth(self, key: Any, offset: int) -> tuple[int, int, int, bool]:
        if not self.exists[key]:
            return UNKNOWN, -1, -1, False
        start, end = self.logs[key]
        if key in self.failing:
            return FENCED, end, start, False
        return 0, end, start, offset < end

    # ── the client ──────────────────────────────────────────────────────────────────────────────

    @initialize(keys=st.sets(some_key, min_size=1))
    def fetch_in_full(self, keys: set[Any]) -> None:
        self.wanted = dict.fromkeys(sorted(keys), 0)
        self.begin()

    def begin(self) -> None:
        answers = {key: self.truth(key, offset) for key, offset in self.wanted.items()}
        self.session = self.sessions.try_create(
            1,
            False,
            ((key, self.parameters(key), *answers[key][:3]) for key in self.wanted),
            len(self.wanted),
            0,
        )
        self.seen = answers
        self.sent = dict(self.wanted)
        self.resolved = None

    def parameters(self, key: Any) -> bytes:
        return PARAMETERS.pack(1 << 20, -1, -1, self.wanted[key])

    @rule(key=some_key)
    def want(self, key: Any) -> None:
        self.wanted.setdefault(key, 0)

    @rule(key=some_key)
    def do_not_want(self, key: Any) -> None:
        if len(self.wanted) > 1:
            self.wanted.pop(key, None)

    @rule(records_max=st.integers(0, 6))
    def fetch(self, records_max: int = 6) -> None:
        """An incremental request; its answer has records of so many partitions at most."""
        session = self.session
        changed = [key for key in self.wanted if self.sent.get(key) != self.wanted[key]]
        forgotten = [key for key in self.sent if key not in self.wanted]
        session.change([(key, self.parameters(key)) for key in changed], forgotten)
        for key in forgotten:
            self.seen.pop(key)
        self.sent = dict(self.wanted)
        if self.resolved != self.exists:
            session.resolve(list(session.partitions), self.locate)
            self.resolved = dict(self.exists)
        else:
            session.resolve(session.unresolved, self.locate)
        for key, (error, end, start, has_records) in self.read(records_max).items():
            assert key in self.wanted
            if not error and not has_records:
                assert self.seen.get(key, ())[:3] != (0, end, start), "it was known"
            if not error:
                session.on_told(key, error, end, start, has_records)
            self.seen[key] = (error, end, start, has_records)
            if has_records or (not error and self.wanted[key] > end):
                self.wanted[key] = end
        self.compare(records_max)

    def read(self, records_max: int) -> Telling:
        """As the broker of the log answers: what the client knows is left out."""
        keys, payload = self.session.asked()
        entries = READ_PARTITION.iter_unpack(payload)
        told: Telling = {}
        self.read_order = []
        for key, entry in zip(keys, entries, strict=True):
            located, _, _, _, offset, known_end, known_start = entry
            assert located == self.locate(key)
            assert offset == self.sent[key]
            error, end, start, has_records = self.truth(key, offset)
            if has_records:
                has_records = records_max > 0
                records_max -= 1
                if has_records:
                    self.read_order.append(key)
            if error or has_records or (known_end, known_start) != (end, start):
                told[key] = error, end, start, has_records
            if error:
                self.session.on_told(key, error, end, start, False)
        for key, error in self.session.errors.items():
            told[key] = error, -1, -1, False
        return told

    def compare(self, records_max: int) -> None:
        """What the client believes now is what a full fetch tells."""
        assert self.seen.keys() == self.wanted.keys()
        for key, (error, end, start, _) in self.seen.items():
            assert (error, end, start) == self.truth(key, 0)[:3], key
        order = list(self.session.partitions)
        if self.read_order:
            assert order[-len(self.read_order) :] == self.read_order, "who gave goes to the end"

    @rule()
    def begin_anew(self) -> None:
        self.sessions.remove(self.session)
        self.begin()

    @invariant()
    def accounts_are_right(self) -> None:
        if self.session is not None:
            assert set(self.session.errors) <= set(self.session.partitions)
            assert len(self.sessions.sessions) == 1


SessionMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None
)
TestFetchSession = SessionMachine.TestCase
