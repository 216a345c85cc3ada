"""The counters region: what each process shows of itself, and what is told to all of them.

`top`, the exporter and the supervisor read it without asking anybody. Every word has one storing
process; a word that another process waits for is announced by ringing that process's doorbell.

at       size  field                stored by          meaning
0x0000      8  magic                creator            b"SHMCNTS1"
0x0008      8  slots                creator            process slots that follow
0x0010      8  counters             creator            words of counters in each slot
0x0080      8  announcements        supervisor         +1 each time that it has stored something for
                                                       all: an incarnation, settings, log levels
0x0100      8  metadata_leader      active controller  its epoch << 32 | INACTIVE | its id
0x0180      8  metadata_end_offset  active controller  one past the last committed offset of the
                                                       metadata log
0x1000      …  slots                                   0x800 each
      …     …  acknowledgements                        8 each: slots * slots

One slot. What others look for often lies apart from what its owner stores often.
+0x000      8  pid                  supervisor         0 while nobody runs
+0x008      8  started_ms           supervisor         milliseconds since 1970
+0x010      8  incarnation          supervisor         which start of this slot it is
+0x080      8  doorbell             owner              see `doorbell`
+0x100      8  liveness_ns          owner              monotonic clock at its last sign of life
+0x108      8  state                owner              a STATE_ below
+0x110      8  open_connections     owner              client connections
+0x118      8  metadata_applied     owner              one past the last metadata offset applied
+0x120      8  cleaner_wanted       owner              1: an I/O worker has had a log to compact
+0x128      8  cleaner_rate         owner              bytes a second compaction may move for it
+0x130      8  work                 owner              what it does that takes long, see `signs`
+0x138      8  disk                 owner              of an I/O worker: a DISK_ below
+0x140      8  guest_room           owner              of an I/O worker: thousandths of its time
                                                       that it has for guests (`gateway.guests`)
+0x148      8  ahead_ends           owner              of an I/O worker: +1 each time that slices
                                                       told ahead hold no longer (READ_AHEAD)
+0x180  0x680  counters             owner              COUNTERS, then GAUGES, in their order, 8 each

How a dead process's rings are used again: the supervisor reaps it, stores the slot's next
incarnation, then announcements, and rings everyone. Each living end that sees this word change
drops what it has pending with the slots whose incarnation it has not acknowledged, resets its half
of their rings, then stores that incarnation as its acknowledgement. When all have, the supervisor
forks the successor.

metadata_leader is one word because two could be seen in halves: the new epoch with the old id.
With the bit INACTIVE it says whose log holds what is committed, though nobody is active now; 0 is
the time before the first one.
Counters of a slot go on from its last incarnation; they begin at 0 with the family. What hot code
counts it counts in variables of its own, and shows here once a second (`Tally`): a killed process
takes the counts of its last second with it.
"""

from shmbroker.errors import ConfigFault
from shmbroker.shm.words import WORD_BYTES, words_of

COUNTERS = (
    # name, meaning: they grow as long as the family lives
    ("turns", "passes of the main loop"),
    ("claims_refused", "claims for which a ring had no room"),
    ("connections_accepted", "client connections accepted"),
    ("connections_refused_for_all", "client connections closed at once, for max.connections"),
    ("connections_refused_for_address", "the same, for max.connections.per.ip or its overrides"),
    ("authentications_failed", "clients that could not show who they are"),
    ("connections_refused_for_rate", "the same, for a quota connection_creation_rate"),
    ("connections_closed", "client connections ended, by either side"),
    ("connections_closed_idle", "of these, as they were idle (connections.max.idle.ms)"),
    (
        "connections_closed_slow",
        "of these, as half a frame did not come, answers were not read, or "
        "who it is was not shown in time",
    ),
    ("listeners_rested", "times that a listener accepted nobody, for max.connection.creation.rate"),
    ("protocol_faults", "client connections closed for bytes that do not parse, or by a fault"),
    ("throttled_produce", "requests whose client was muted for its producer_byte_rate"),
    ("throttled_produce_ms", "milliseconds of it"),
    ("throttled_fetch", "requests whose client was muted for its consumer_byte_rate"),
    ("throttled_fetch_ms", "milliseconds of it"),
    ("throttled_request", "requests whose client was muted for its request_percentage"),
    ("throttled_request_ms", "milliseconds of it"),
    ("throttled_mutation", "requests whose client was muted for its controller_mutation_rate"),
    ("throttled_mutation_ms", "milliseconds of it"),
    ("requests_held", "requests that waited, as a ring was full or a broker down"),
    ("requests_denied", "requests that ACLs denied, all of them or a part"),
    ("received_bytes", "bytes read from clients"),
    ("sent_bytes", "bytes written to clients, file slices included"),
    ("sent_file_bytes", "of these, bytes sent from files by sendfile"),
    ("appends_refused_not_leader", "appends answered with NOT_LEADER_OR_FOLLOWER"),
    ("appends_refused_not_in_sync", "appends answered with NOT_ENOUGH_REPLICAS, before or after"),
    ("appends_refused_storage", "appends answered with KAFKA_STORAGE_ERROR"),
    ("appends_refused_invalid", "appends answered with another error"),
    ("batches_appended", "record batches appended to logs led here"),
    ("appended_bytes", "bytes in them"),
    ("replicated_bytes", "bytes of batches copied from a leader"),
    ("reads_served", "read operations answered"),
    ("read_bytes", "bytes in the slices they were answered with"),
    ("operations_delayed", "operations that had to wait in a purgatory"),
    ("operations_expired", "of these, ended by their deadline"),
    ("segments_deleted", "log segments deleted"),
    ("flushes", "fdatasync calls on log files"),
    ("flush_us", "microseconds spent in them"),
    ("storage_faults", "refusals by the disk"),
    (
        "partitions_lost",
        "partitions gone or set aside at a start, as nothing could be made of them",
    ),
    ("log_damage", "places of logs found damaged, missing or impossible"),
    ("logs_compacted", "passes of compaction over a log"),
    ("logs_not_compacted", "logs that compaction has given up"),
    ("compaction_read_bytes", "bytes of segments that compaction has read"),
    ("compaction_written_bytes", "bytes of segments that it has written"),
    ("compaction_removed_records", "records that it has left out"),
    ("tier_copies", "segments copied to the remote store"),
    ("tier_copied_bytes", "bytes of their logs"),
    ("tier_deletes", "segments deleted from it"),
    ("tier_fetches", "ranges of segments read from it"),
    ("tier_fetched_bytes", "bytes of batches in them"),
    ("tier_faults", "requests that the remote store has failed"),
    ("tier_damaged", "segments or manifests found damaged, here or there"),
)
GAUGES = (
    # name, meaning: as it was when its owner last looked, a second ago at most
    ("boot_ms", "milliseconds from the fork of this process until it served"),
    ("requests_in_flight", "requests that wait for a result of another process"),
    ("arriving_bytes", "memory held by frames that are still arriving"),
    ("answers_unsent", "memory of answers that clients do not read"),
    ("delayed_reads", "reads that wait in the purgatory"),
    ("delayed_appends", "acks that wait for the in-sync replicas"),
    ("flushes_waiting", "flushes that are asked for and not done"),
    ("groups", "groups that are coordinated here"),
    ("groups_bytes", "memory that counts for shmbroker.groups.bytes"),
    ("groups_loading", "partitions of __consumer_offsets that are still being read"),
    ("transactional_ids_empty", "transactional ids coordinated here that had no transaction yet"),
    ("transactional_ids_ongoing", "those with an open transaction"),
    ("transactional_ids_prepare_commit", "those whose commit is decided, not all marked yet"),
    ("transactional_ids_prepare_abort", "those whose abort is decided, not all marked yet"),
    ("transactional_ids_complete_commit", "those whose last transaction was committed"),
    ("transactional_ids_complete_abort", "those whose last transaction was aborted"),
    ("transactions_loading", "partitions of __transaction_state that are still being read"),
    ("open_transactions", "open transactions in each of the partitions that are led here"),
    ("stable_lag_records", "the longest way from a last stable offset to a high watermark"),
    ("late_transaction_partitions", "partitions led here where one is open that nobody will end"),
    ("disk_free_bytes", "room on the disk of the log directory"),
    ("disk_reserve_bytes", "below so much room Produce is refused"),
)

STATE_NONE = 0
STATE_STARTING = 1
STATE_RUNNING = 2
STATE_STOPPING = 3
STATE_UNABLE = 4
"""Dead, as it can't boot; it is tried again now and then. The supervisor stores it, and NONE."""

DISK_HAS_ROOM = 0
DISK_IS_FULL = 1
"""Nearly: producers are refused."""
DISK_HAS_FAILED = 2
"""The log directory is offline."""

INACTIVE = 1 << 31
"""Set in metadata_leader where that controller is active no more."""

MAGIC = int.from_bytes(b"SHMCNTS1", "little")

# Indexes into the words of the region.
MAGIC_WORD = 0x0000 // WORD_BYTES
SLOTS_WORD = 0x0008 // WORD_BYTES
COUNTERS_WORD = 0x0010 // WORD_BYTES
ANNOUNCEMENTS_WORD = 0x0080 // WORD_BYTES
METADATA_LEADER_WORD = 0x0100 // WORD_BYTES
METADATA_END_OFFSET_WORD = 0x0180 // WORD_BYTES
SLOTS_START_WORD = 0x1000 // WORD_BYTES

# Indexes into the words of one slot; the index in the region comes from `Counters.at`.
SLOT_BYTES = 0x800
PID = 0x000 // WORD_BYTES
STARTED_MS = 0x008 // WORD_BYTES
INCARNATION = 0x010 // WORD_BYTES
DOORBELL = 0x080 // WORD_BYTES
LIVENESS_NS = 0x100 // WORD_BYTES
STATE = 0x108 // WORD_BYTES
OPEN_CONNECTIONS = 0x110 // WORD_BYTES
METADATA_APPLIED = 0x118 // WORD_BYTES
CLEANER_WANTED = 0x120 // WORD_BYTES
CLEANER_RATE = 0x128 // WORD_BYTES
WORK = 0x130 // WORD_BYTES
DISK = 0x138 // WORD_BYTES
GUEST_ROOM = 0x140 // WORD_BYTES
AHEAD_ENDS = 0x148 // WORD_BYTES
COUNTERS_START = 0x180 // WORD_BYTES

_SLOT_WORDS = SLOT_BYTES // WORD_BYTES
_COUNTER_INDEX = {name: COUNTERS_START + i for i, (name, _meaning) in enumerate(COUNTERS + GAUGES)}

assert COUNTERS_START + len(_COUNTER_INDEX) <= _SLOT_WORDS


def layout_size(slots: int) -> int:
    """Bytes of a counters region for that many process slots."""
    return SLOTS_START_WORD * WORD_BYTES + slots * SLOT_BYTES + slots * slots * WORD_BYTES


class Counters:
    """The region's words and where they are; hot code keeps an index and does `words[i] += 1`."""

    __slots__ = ("slots", "words")

    def __init__(self, view: memoryview, slots: int) -> None:
        """Lay out zeroed bytes; before the fork."""
        assert len(view) >= layout_size(slots), "too small for the counters"
        self.words = words = words_of(view)
        self.slots = slots
        words[SLOTS_WORD] = slots
        words[COUNTERS_WORD] = len(_COUNTER_INDEX)
        words[MAGIC_WORD] = MAGIC

    @classmethod
    def attach(cls, view: memoryview) -> "Counters":
        """The counters of a running family; ConfigFault if another version of this made them."""
        words = words_of(view)
        slots = words[SLOTS_WORD]
        if (
            words[MAGIC_WORD] != MAGIC
            or words[COUNTERS_WORD] != len(_COUNTER_INDEX)
            or len(view) < layout_size(slots)
        ):
            raise ConfigFault("The running broker is of another version: use the tools it brought.")
        self = cls.__new__(cls)
        self.words = words
        self.slots = slots
        return self

    def at(self, slot: int, field: int) -> int:
        """The index in `words` of a slot's field: PID to AHEAD_ENDS above."""
        assert 0 <= slot < self.slots, "no such slot"
        return SLOTS_START_WORD + slot * _SLOT_WORDS + field

    def word(self, slot: int, field: int) -> memoryview:
        """The word of one field of a slot, alone."""
        index = self.at(slot, field)
        return self.words[index : index + 1]

    def counter(self, slot: int, name: str) -> int:
        """The index in `words` of a slot's counter, by its name in COUNTERS or GAUGES."""
        return self.at(slot, _COUNTER_INDEX[name])

    def acknowledgement(self, slot: int, peer: int) -> int:
        """The index in `words` of the incarnation of `peer` that `slot` has made its rings
        ready for."""
        assert 0 <= slot < self.slots and 0 <= peer < self.slots, "no such slot"
        return SLOTS_START_WORD + self.slots * _SLOT_WORDS + slot * self.slots + peer

    def store_metadata_leader(
        self, epoch: int, controller_id: int, *, is_active: bool = True
    ) -> None:
        """Say who leads the metadata log; its end offset is stored after this, and never falls."""
        inactive = 0 if is_active else INACTIVE
        self.words[METADATA_LEADER_WORD] = epoch << 32 | inactive | controller_id

    def metadata_leader(self) -> tuple[int, int, bool]:
        """Epoch and id of the active controller, and whether it is that still; (0, 0, False)
        before the first, as epochs begin at 1."""
        word = self.words[METADATA_LEADER_WORD]
        return word >> 32, word & (INACTIVE - 1), word >> 32 > 0 and not word & INACTIVE

    def totals(self) -> dict[str, int]:
        """Each counter by its name, summed over all slots."""
        return {
            name: sum(self.words[self.counter(slot, name)] for slot in range(self.slots))
            for name, _meaning in COUNTERS
        }


class Tally:
    """The counters and gauges of one slot, for the process that owns it."""

    __slots__ = ("_counters", "_shown", "_slot")

    def __init__(self, counters: Counters, slot: int) -> None:
        self._counters = counters
        self._slot = slot
        self._shown: dict[str, int] = {}

    def add(self, name: str, by: int = 1) -> None:
        """Count something now."""
        self._counters.words[self._counters.counter(self._slot, name)] += by

    def show(self, name: str, total: int) -> None:
        """Add what a count of this process has grown by since it was shown last."""
        grown = total - self._shown.get(name, 0)
        if grown:
            self._shown[name] = total
            self.add(name, grown)

    def set(self, name: str, value: int) -> None:
        """Store a gauge; below 0 is 0."""
        self._counters.words[self._counters.counter(self._slot, name)] = max(0, value)
