"""A model of the family: Produce through clients, network workers, rings and I/O workers on cores.

A discrete-event simulation. It knows nothing of a real broker but `Costs`, which are measured, and
these rules, which are the code's:

* A process sleeps until something comes, then works in turns: a turn takes all that has come, and
  costs something by itself beside each item. So a busy process is cheaper than an idle one.
* What a turn makes is published when its items are done, or after 64 KiB of batches
  (`broker/intake.py`), before half of what the turn itself costs. A client sends each request at
  once; the time of a request is from just before that until its answer was received, as a load
  driver counts it.
* Who publishes to a sleeper rings its doorbell, which costs the ringer, the sleeper (its way into
  sleep and out of it), and time, if the core has gone to rest.
* Before it sleeps, a worker looks for more (`ipc/awake.py`): a network worker as long as it waits
  for appends, both after an answer where that mostly pays (`ipc/streak.py`). That takes a core, but
  gives it to whoever wants it.
* A core that is free takes whoever has waited longest. Who has it keeps it, as Linux since 6.6 has
  it, until it sleeps or has had it for a slice; who only looks gives it to who is woken.
* Frames over 64 KiB come in pieces, so that sender and receiver work at the same time.
* Network card and memory are servers of their own: bytes wait for them in order.

Time is in µs. Nothing here reads a clock; each cost varies by a fifth to both sides, drawn from a
seeded `Random`. Same arguments, same answer.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from perf.family_terms import Costs, Host, Load, Outcome, io_kib, network_kib
from shmbroker.ipc.awake import AFTER_S, WAITS_S
from shmbroker.ipc.streak import Streak

WAITS_US, AFTER_US = WAITS_S * 1e6, AFTER_S * 1e6
PIECE_BYTES = 64 * 1024
"""What of a large frame is sent, and received, before the rest."""
PUBLISHED_BYTES = 64 * 1024
VARIES_BY = 0.2
SHARE_BEFORE = 0.5
"""Of what a turn costs: what comes before its items; the rest comes after they are published."""
SHARE_RECEIVED = 0.5
"""Of what a byte costs a network worker: from the socket; the rest is its copy into the ring."""
MEMORY_TOUCHES = 7
"""How often a byte of a batch crosses the memory bus of a host that is busy: in from the card, out
of the socket's buffer and into ours (2), into the ring (2), CRC, into the page cache (1)."""
SEED = 27


Event = tuple[float, int, Callable[..., None], tuple[Any, ...]]
"""When; order; what."""


class Request:
    """One request. begun: when its client was about to send it; until then, that in µs before it
    is published, as its client may be interrupted."""

    __slots__ = ("begun", "connection", "is_sent", "number")

    def __init__(self, number: int, connection: int, begun: float, is_sent: bool) -> None:
        self.number, self.connection = number, connection
        self.begun, self.is_sent = begun, is_sent


SLEEPS, READY, RUNS, LOOKS = range(4)
SLICE_US = 3000.0
"""So long one that has more to do keeps a core that others wait for."""


class Cores:
    """A core, or several among which processes move."""

    __slots__ = ("idle", "is_one", "last", "lookers", "queue", "running")

    def __init__(self, count: int) -> None:
        self.idle = count
        self.is_one = count == 1
        self.last: Process | None = None
        """Who has begun to run last, of one core: who does so again finds its caches warm."""
        self.queue: deque[Process] = deque()
        """Those that wait."""
        self.lookers: deque[Process] = deque()
        """Those that have given their core away while they looked."""
        self.running: dict[Process, None] = {}

    def take(self, process: Process) -> None:
        """A process runs here from now on."""
        self.running[process] = None
        if self.is_one and self.last is not process:
            self.last = process
            process.is_cold = True


class Process:
    """One process: its inbox, its state, what it has spent."""

    __slots__ = (
        "cores",
        "has_waited",
        "inbox",
        "is_cold",
        "is_free",
        "is_fresh",
        "look_left",
        "looks_since",
        "name",
        "role",
        "runs_since",
        "spent",
        "state",
        "streak",
        "token",
        "waits_for",
    )  # fmt: skip

    def __init__(self, name: str, role: str, cores: Cores, is_free: bool = False) -> None:
        self.name, self.role = name, role
        self.inbox: deque[tuple[Any, ...]] = deque()
        self.state = SLEEPS
        self.waits_for = 0
        """Appends whose results are under way to it."""
        self.has_waited = False
        self.streak = Streak()
        self.look_left = 0.0
        self.looks_since = 0.0
        self.spent = 0.0
        self.token = 0
        """Of its last look: one that was ended leaves an event that means nothing."""
        self.is_fresh = True
        """It has slept, and pays for that."""
        self.is_cold = False
        self.is_free = is_free
        """It needs no core here."""
        self.cores = cores
        self.runs_since = 0.0
        """When it was given its core last."""


class Family:
    """One run: `run` gives what came of it."""

    def __init__(self, costs: Costs, host: Host, load: Load, seed: int = SEED) -> None:
        self.costs, self.host, self.load = costs, host, load
        self._random = Random(seed)
        self.now = 0.0
        self._events: list[Event] = []
        self._order = 0
        anywhere = Cores(host.cores)
        of_client = of_network = of_io = anywhere
        if host.places is not None:
            each = [Cores(1) for _ in range(host.cores)]
            of_client, of_network, of_io = (each[number] for number in host.places)
        self.networks = [
            Process(f"network-worker-{n}", "network", of_network)
            for n in range(host.network_workers)
        ]
        self.ios = [Process(f"io-worker-{n}", "io", of_io) for n in range(host.io_workers)]
        # Clients on this host share its cores; one process drives all connections, as drive does.
        self.client = Process("client", "client", of_client, host.has_remote_clients)
        self._network_free = self._memory_free = 0.0
        self._network_used = self._memory_used = 0.0
        self.sent = 0
        self.times: list[float] = []
        self.ended: list[float] = []
        self.answered: list[int] = []
        """Numbers of the requests in the order of their answers."""

    # ── events ──────────────────────────────────────────────────────────────────────────────────

    def _at(self, time: float, act: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, act, arguments))

    def _varied(self, cost: float) -> float:
        return cost * (1 + VARIES_BY * (2 * self._random.random() - 1))

    def run(self, requests: int) -> Outcome:
        """Until so many are answered."""
        load, first = self.load, requests // 5
        for number in range(load.connections * load.depth):
            connection = number % load.connections
            if self.host.has_remote_clients:
                self._at(self._varied(max(1.0, load.think_us)), self._send_remote, connection)
            else:
                self.client.inbox.append(("start", connection))
        if self.client.inbox:
            self._wake(self.client)
        events, pop = self._events, heapq.heappop
        marked = False
        began, spent = 0.0, {"client": 0.0, "network": 0.0, "io": 0.0}
        used = (0.0, 0.0)
        while events and len(self.times) < requests:
            time, _, act, arguments = pop(events)
            self.now = time
            act(*arguments)
            if not marked and len(self.times) >= first:
                marked, began, spent = True, self.now, self._spent()
                used = (self._network_used, self._memory_used)
                first = len(self.times)
        elapsed = max(self.now - began, 1e-9)
        taken = self.times[first:]
        count = max(len(taken), 1)
        each = {role: cpu - spent[role] for role, cpu in self._spent().items()}
        use = {
            "network workers": each["network"] / elapsed / self.host.network_workers,
            "I/O workers": each["io"] / elapsed / self.host.io_workers,
            "network": (self._network_used - used[0]) / elapsed,
            "memory": (self._memory_used - used[1]) / elapsed,
        }
        ordered = sorted(taken) or [0.0]
        return Outcome(
            count / elapsed * 1e6,
            ordered[len(ordered) // 2],
            sum(ordered) / len(ordered),
            each["client"] / count,
            each["network"] / count,
            each["io"] / count,
            use,
        )

    def _spent(self) -> dict[str, float]:
        found = {"client": self.client.spent, "network": 0.0, "io": 0.0}
        for process in (*self.networks, *self.ios):
            found[process.role] += process.spent
            if process.state == LOOKS and process.looks_since >= 0:
                found[process.role] += self.now - process.looks_since
        return found

    # ── cores ───────────────────────────────────────────────────────────────────────────────────

    def _deliver(self, process: Process, item: tuple[Any, ...]) -> bool:
        """Put it into an inbox; whether its owner slept, and was woken."""
        process.inbox.append(item)
        if process.state == SLEEPS:
            self._wake(process)
            return True
        if process.state == LOOKS:
            if not process.has_waited:
                process.streak.note(True)
            cores = process.cores
            self._end_look(process)
            if process in cores.lookers:  # it has given its core away: it waits with the others
                cores.lookers.remove(process)
                process.state = READY
                cores.queue.append(process)
                self._dispatch(cores)
            else:
                process.state = RUNS
                self._at(self.now, self._turn, process)
        return False

    def _wake(self, process: Process) -> None:
        process.is_fresh = True
        process.state = READY
        if process.is_free:
            process.state = RUNS
            self._at(self.now, self._turn, process)
            return
        cores = process.cores
        if cores.idle:
            cores.idle -= 1
            self._start(process, self.now + self._varied(self.costs.wake))
            return
        cores.queue.append(process)
        self._dispatch(cores)

    def _start(self, process: Process, at: float) -> None:
        process.state = RUNS
        process.runs_since = at
        process.cores.take(process)
        self._at(at, self._turn, process)

    def _dispatch(self, cores: Cores) -> None:
        """Give cores that are free, or of those who only look, to those who wait."""
        while cores.queue:
            if cores.idle:
                cores.idle -= 1
            else:
                looker = next((each for each in cores.running if each.state == LOOKS), None)
                if looker is None:
                    return
                self._end_look(looker)
                looker.looks_since = -1.0
                del cores.running[looker]
                cores.lookers.append(looker)
            process = cores.queue.popleft()
            self._start(process, self.now)

    def _leave_core(self, process: Process) -> None:
        cores = process.cores
        del cores.running[process]
        cores.idle += 1
        self._dispatch(cores)
        while cores.idle and cores.lookers:
            cores.idle -= 1
            looker = cores.lookers.popleft()
            cores.take(looker)
            self._begin_look(looker)

    # ── looking ─────────────────────────────────────────────────────────────────────────────────

    def _look_us(self, process: Process) -> float:
        """For how long it looks now, as `Awake.look` decides that."""
        if process.role == "client":
            return 0.0
        has_waited, process.has_waited = process.has_waited, process.waits_for > 0
        if process.has_waited:
            return WAITS_US
        has_answered = process.role == "io" or has_waited
        return AFTER_US if has_answered and process.streak.pays() else 0.0

    def _begin_look(self, process: Process) -> None:
        process.state = LOOKS
        process.looks_since = self.now
        process.token += 1
        self._at(self.now + process.look_left, self._look_over, process, process.token)
        self._dispatch(process.cores)

    def _end_look(self, process: Process) -> None:
        """Count what it has looked."""
        if process.looks_since >= 0:
            looked = self.now - process.looks_since
            process.spent += looked
            process.look_left = max(0.0, process.look_left - looked)
            process.token += 1

    def _look_over(self, process: Process, token: int) -> None:
        if process.token != token or process.state != LOOKS:
            return
        if not process.has_waited:
            process.streak.note(False)
        self._end_look(process)
        process.state = SLEEPS
        self._leave_core(process)

    # ── turns ───────────────────────────────────────────────────────────────────────────────────

    def _turn(self, process: Process) -> None:
        """All that has come; what it makes leaves at the moments that `_work` says."""
        costs, now = self.costs, self.now
        role = process.role
        start = now
        if process.is_fresh:
            start += costs.sleep
            process.is_fresh = False
        if process.is_cold:
            start += self._varied(costs.switch)
            process.is_cold = False
        turn = self._varied(getattr(costs, f"{role}_turn"))
        # A client receives, and then looks at what it has.
        rest = 0.0 if role == "client" else turn * (1 - SHARE_BEFORE)
        start += turn - rest
        items, process.inbox = process.inbox, deque()
        made: list[tuple[Process, tuple[Any, ...]]] = []
        unpublished = 0
        at = start
        for item in items:
            cost, size, results = self._work(process, item, start, at)
            at = max(at + self._varied(cost), self._memory(role, size, at))
            made += results
            unpublished += size
            if made and (role == "client" or unpublished > PUBLISHED_BYTES):
                self._at(at, self._publish, process, made, None)
                made, unpublished = [], 0
                # The bell that it may ring is paid for here: who sleeps is known only then.
        process.spent += at + rest - now
        self._at(at, self._publish, process, made, rest)

    def _publish(
        self, process: Process, made: list[tuple[Process, tuple[Any, ...]]], rest: float | None
    ) -> None:
        """rest: what its turn still takes behind this; None: it goes on with items."""
        rung = 0
        for target, item in made:
            if item[0] == "piece" and not item[1].is_sent:
                item[1].begun, item[1].is_sent = self.now - item[1].begun, True
            if target.is_free:
                self._at(self.now + self._varied(self.load.think_us), self._answer_remote, item)
            else:
                rung += self._deliver(target, item)
        if rung:
            process.spent += rung * self.costs.ring
        if rest is not None:
            self._at(self.now + rung * self.costs.ring + rest, self._end_turn, process)

    def _end_turn(self, process: Process) -> None:
        if process.inbox:
            has_had_its = self.now - process.runs_since > SLICE_US
            if process.cores.queue and has_had_its and not process.is_free:
                process.state = READY
                process.cores.queue.append(process)
                self._leave_core(process)
            else:
                self._turn(process)
            return
        if process.is_free:
            process.state = SLEEPS
            return
        process.look_left = self._look_us(process)
        if process.look_left:
            self._begin_look(process)
            return
        process.state = SLEEPS
        self._leave_core(process)

    # ── the work ────────────────────────────────────────────────────────────────────────────────

    def _work(
        self, process: Process, item: tuple[Any, ...], start: float, at: float
    ) -> tuple[float, int, list[tuple[Process, tuple[Any, ...]]]]:
        """What an item costs, the bytes of batches that it moves, and what it makes. start: when
        its turn began to look at items; at: when it came to this one.

        start      client: a request goes out        → piece …, to its network worker
        piece      network worker: part of a frame   → append (of the last one), to the I/O worker
        append     I/O worker                        → result, to the network worker
        result     network worker                    → answer, to the client
        answer     client: its next request goes out → piece …
        """
        costs, size = self.costs, self.load.bytes
        kind = item[0]
        if kind == "piece":
            _, request, bytes_, is_last = item
            kib = network_kib(costs, size)
            cost = bytes_ / 1024 * kib * SHARE_RECEIVED
            if not is_last:
                return cost, 0, []
            cost += costs.network_request / 2 + size / 1024 * kib * (1 - SHARE_RECEIVED)
            process.waits_for += 1
            io = self.ios[request.connection % len(self.ios)]
            return cost, size, [(io, ("append", request))]
        if kind == "append":
            request = item[1]
            cost = costs.io_request + size / 1024 * io_kib(costs, size)
            network = self.networks[request.connection % len(self.networks)]
            return cost, size, [(network, ("result", request))]
        if kind == "result":
            process.waits_for -= 1
            return costs.network_request / 2, 0, [(self.client, ("answer", item[1]))]
        connection = item[1]
        if kind == "answer":
            self._answered(item[1], start)
            connection = item[1].connection
        elif kind == "rest":
            _, request, left = item
            return self._sends(request, left)
        request = Request(self.sent, connection, 0.0, False)
        self.sent += 1
        cost, moved, made = self._sends(request, size)
        request.begun = cost + costs.client_send
        return cost + costs.client_request + costs.client_send, moved, made

    def _sends(
        self, request: Request, left: int
    ) -> tuple[float, int, list[tuple[Process, tuple[Any, ...]]]]:
        """One piece of a frame, and the client's own note that there is more."""
        piece = min(left, PIECE_BYTES)
        network = self.networks[request.connection % len(self.networks)]
        if left > piece:
            self.client.inbox.appendleft(("rest", request, left - piece))
        cost = piece / 1024 * self.costs.client_kib
        return cost, 0, [(network, ("piece", request, piece, left == piece))]

    def _answered(self, request: Request, at: float) -> None:
        self.times.append(at - request.begun)
        self.answered.append(request.number)

    def _send_remote(self, connection: int) -> None:
        """A request of another machine goes through the network card, piece by piece."""
        request = Request(self.sent, connection, self.now, True)
        self.sent += 1
        network = self.networks[connection % len(self.networks)]
        left = self.load.bytes
        while left:
            piece = min(left, PIECE_BYTES)
            left -= piece
            if self.host.network_gbit_s:
                takes = piece * 8 / self.host.network_gbit_s / 1000
                self._network_free = max(self._network_free, self.now) + takes
                self._network_used += takes
            arrives = max(self._network_free, self.now)
            self._at(arrives, self._arrive, network, ("piece", request, piece, not left))

    def _arrive(self, network: Process, item: tuple[Any, ...]) -> None:
        self._deliver(network, item)

    def _answer_remote(self, item: tuple[Any, ...]) -> None:
        self._answered(item[1], self.now)
        self._send_remote(item[1].connection)

    def _memory(self, role: str, size: int, at: float) -> float:
        """When the bytes of a batch have been through the memory bus; who appends counts them."""
        if role != "io" or not self.host.memory_gb_s:
            return at
        takes = size * MEMORY_TOUCHES / self.host.memory_gb_s / 1000
        # Turns that overlap are begun in order, but their items are not: the bus is asked for as of
        # the turn's begin, which only grows.
        self._memory_free = max(self._memory_free, self.now) + takes
        self._memory_used += takes
        return max(at, self._memory_free)


def simulate(
    costs: Costs, host: Host, load: Load, requests: int = 400, seed: int = SEED
) -> Outcome:
    """What comes of a load on a host."""
    return Family(costs, host, load, seed).run(requests)
