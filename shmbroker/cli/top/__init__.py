"""`shmbroker top`: the family as it works, on a terminal.

It looks from outside (`observe.attach`): shared memory, /proc and files. So it costs the broker
nothing, and shows one that hangs. Groups alone are asked for, as a client does, every 2 s at most.

Rules of this file:
* Two looks make a frame, as most of what is shown is what has moved between them.
* A family that ends is waited for, in its directory.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

import click

from shmbroker import clock, extras
from shmbroker.cli.outcome import EXIT_TERMINATED, CommandFault
from shmbroker.cli.output import print_json
from shmbroker.cli.top.state import State
from shmbroker.cli.top.views import VIEWS, ViewRow, head, view_named
from shmbroker.errors import Fault
from shmbroker.observe.attach import Attached, NotRunning, attach, find
from shmbroker.observe.rates import Rates, between
from shmbroker.observe.snapshot import Snapshot, plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.cli.top.screen import Drawer
    from shmbroker.cli.top.terminal import Terminal

GROUPS_S = 2.0
FIRST_INTERVAL_S = 0.25
"""The first frame does not wait for a whole interval."""
INTERVAL_LEAST_S = 0.1
ONCE_WIDTH = 160


@click.command("top")
@click.option(
    "--data",
    metavar="DIR",
    help="Data directory of the broker.  [default: the one that runs on this host]",
)
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(INTERVAL_LEAST_S),
    metavar="SECONDS",
    default=1.0,
    show_default=True,
    help="Between two looks.",
)
@click.option(
    "--view",
    default="processes",
    metavar="NAME",
    help=f"Begin with this one: {', '.join(view.name for view in VIEWS)}.",
)
@click.option("--once", is_flag=True, help="Print the view once, after one interval, and end.")
@click.option("--json", "as_json", is_flag=True, help="With --once: print all there is, as JSON.")
def command(data: str | None, interval_s: float, view: str, once: bool, as_json: bool) -> None:
    """Show what a broker on this host does: processes, rings, topics, groups, latencies.

    \b
    shmbroker top
    shmbroker top --data /srv/shmbroker --interval 5
    shmbroker top --once --view topics
    shmbroker top --once --json | jq .rates.bytes_in

    It reads the broker's shared memory, so it has to run on its host, as its user or as root. Keys:
    1 to 6 and Tab switch views, < and > choose the column that is sorted by, r turns the order
    round, / filters, Space pauses, + and - change the interval, arrows and PgUp/PgDn scroll, q and
    Ctrl-C end.
    """
    if as_json and not once:
        raise click.UsageError("--json goes with --once.")
    state = State(interval_s, view_named(view))
    if not as_json and find_spec("rich") is None:
        lacking = extras.complaint("rich", "`shmbroker top`")
        raise CommandFault(f"{lacking}; --once --json does without")
    if not once and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top needs a terminal; --once prints one look.")
    seen = _attached(data)
    if once:
        snapshot, rates = _look_twice(seen, interval_s)
        if as_json:
            print_json({"snapshot": plain(snapshot), "rates": plain(rates)})
        else:
            _print(state, snapshot, rates)
        return
    from shmbroker.cli.top.screen import Drawer
    from shmbroker.cli.top.terminal import Terminal

    with Terminal() as terminal:
        try:
            _Top(state, terminal, Drawer(sys.stdout, is_terminal=True), seen).run()
        except KeyboardInterrupt:
            return
        is_terminated = terminal.is_terminated
    if is_terminated:
        sys.exit(EXIT_TERMINATED)


def _attached(data: str | None) -> Attached:
    """A family, its groups asked for; Faults as of `find` and `attach`."""
    seen = attach(find(data))
    seen.observer.groups.ask_s = GROUPS_S
    seen.observer.groups.start()
    return seen


def _look_twice(seen: Attached, interval_s: float) -> tuple[Snapshot, Rates]:
    before = seen.observer.look()
    if seen.has_ended(wait_s=interval_s):
        raise CommandFault("the broker has ended")
    after = seen.observer.look()
    return after, between(before, after)


def _print(state: State, snapshot: Snapshot, rates: Rates) -> None:
    from shmbroker.cli.top.screen import Drawer

    for line in head(snapshot, rates):
        if line.text:
            click.echo(line.text)
    click.echo()
    rows = state.choose(state.shown.rows(snapshot, rates))
    drawer = Drawer(sys.stdout, is_terminal=False)
    for text in drawer.table(state, rows, ONCE_WIDTH):
        click.echo(text.rstrip())


class _Top:
    """The loop: look, draw, wait for keys."""

    def __init__(self, state: State, terminal: Terminal, drawer: Drawer, seen: Attached) -> None:
        self.state = state
        self.terminal = terminal
        self.drawer = drawer
        self.seen = seen
        self.is_gone = False
        """The family has ended, and no other one has come."""
        self.notice = ""
        self._begin()
        self.next_look = clock.monotonic() + FIRST_INTERVAL_S

    def run(self) -> None:
        """Show the family until somebody wants an end."""
        state = self.state
        self._draw()
        while not state.is_over and not self.terminal.is_terminated:
            interval_s = state.interval_s
            for key in self.terminal.keys(self.next_look - clock.monotonic()):
                state.on_key(key)
            if interval_s != state.interval_s:
                self.next_look = min(self.next_look, clock.monotonic() + state.interval_s)
            if clock.monotonic() >= self.next_look:
                self._look()
                self.next_look = clock.monotonic() + state.interval_s
            self._draw()

    def _begin(self) -> None:
        self._take(self.seen.observer.look())

    def _take(self, after: Snapshot, before: Snapshot | None = None) -> None:
        """Show this snapshot. What is made of it is made once, however many keys are pressed."""
        self.after = after
        self.rates = between(before or after, after)
        self._head = head(after, self.rates)
        self._rows: dict[int, list[ViewRow]] = {}

    def _look(self) -> None:
        if self.is_gone or self.seen.has_ended():
            self.is_gone = not self._is_back()
            return
        if self.state.is_paused:
            return
        self._take(self.seen.observer.look(), self.after)
        self.notice = ""

    def _is_back(self) -> bool:
        directory = self.seen.about.data_directory
        try:
            seen = _attached(directory)
        except NotRunning:
            self.notice = f"the broker has ended; waiting for another one on {directory}"
            return False
        except Fault as fault:
            self.notice = str(fault)
            return False
        self.seen.close()
        self.seen = seen
        self._begin()
        self.notice = "another broker has begun"
        return True

    def _draw(self) -> None:
        width, height = self.terminal.size
        view = self.state.view
        if view not in self._rows:
            self._rows[view] = self.state.shown.rows(self.after, self.rates)
        shown = self.state, self._head, self._rows[view], width, height, self.notice
        self.terminal.draw(self.drawer.screen(*shown))
