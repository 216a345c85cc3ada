"""The flags of `serve`, once for click and once for a start that does without it.

click is a quarter of the time from launch to the first connection. Words that are nothing but flags
with values need none of what it does; for all else (--help, a mistake) it is asked.
"""

from collections.abc import Sequence

FLAGS = (
    # flag, parameter, metavar ("": it takes no value, it is "true"), setting or "", help
    ("--config", "config_file", "FILE", "", "File with settings, TOML or properties."),
    (
        "--data",
        "data",
        "DIR",
        "shmbroker.data",
        "Data directory.  [default: XDG state directory]",
    ),
    (
        "--host",
        "host",
        "ADDRESS",
        "shmbroker.host",
        "Address to listen on.  [default: 127.0.0.1]",
    ),
    (
        "--port",
        "port",
        "N",
        "shmbroker.port",
        "Port of the first broker; 0 takes free ones.  [default: 9092]",
    ),
    (
        "--listeners",
        "listeners",
        "NAME://HOST:PORT,…",
        "listeners",
        "Addresses to listen on, instead of --host and --port; UNIX:///path is a Unix socket.",
    ),
    (
        "--node-id",
        "node_id",
        "N",
        "shmbroker.node.id",
        "Id of the first broker; others follow.  [default: as its log directory says, or 1]",
    ),
    (
        "--replicas",
        "replicas",
        "R",
        "shmbroker.replicas",
        "Copies of each new partition, each on a broker of its own.  [default: 1]",
    ),
    (
        "--controllers",
        "controllers",
        "V",
        "shmbroker.controllers",
        "Controllers, an odd number: more than half must be alive.  [default: 1]",
    ),
    (
        "--log-dir",
        "log_dirs",
        "DIR",
        "shmbroker.log.dirs",
        "Log directory of a broker instead of DATA/node-N; the i-th is the i-th broker's.",
    ),
    (
        "--io-workers",
        "io_workers",
        "M",
        "shmbroker.io.workers",
        "Brokers, each with its log directory and port; at least R.",
    ),
    (
        "--network-workers",
        "network_workers",
        "N",
        "shmbroker.network.workers",
        "Processes that own client connections.",
    ),
    (
        "--metrics",
        "metrics",
        "HOST:PORT",
        "shmbroker.metrics",
        "Show metrics to Prometheus there, by a process of its own.",
    ),
    (
        "--log-format",
        "log_format",
        "human|json",
        "shmbroker.logger.format",
        "How lines of the log look.  [default: human]",
    ),
    (
        "--log-level",
        "log_level",
        "LEVEL",
        "shmbroker.logger.levels",
        "Least level that is logged: DEBUG, INFO, WARN, ERROR; LOGGER=LEVEL,… of some modules.",
    ),
    (
        "--console",
        "console",
        "HOST:PORT",
        "shmbroker.console",
        "Show the console to browsers there, by a process of its own.",
    ),
    (
        "--console-writes",
        "console_writes",
        "",
        "shmbroker.console.writes",
        "Let the console produce records, move offsets and delete topics.",
    ),
    ("--set", "assignments", "KEY=VALUE", "", "Set KEY to VALUE; repeatable."),
)
REPEATED = ("log_dirs", "assignments")


def parse_plain(words: Sequence[str]) -> dict[str, str | tuple[str, ...] | None] | None:
    """The parameters that click would make of `words`; None if click has to see them."""
    parameters = {flag: parameter for flag, parameter, *_ in FLAGS}
    switches = {flag for flag, _, metavar, *_ in FLAGS if not metavar}
    found: dict[str, str | tuple[str, ...] | None] = dict.fromkeys(parameters.values())
    repeated: dict[str, list[str]] = {parameter: [] for parameter in REPEATED}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        if flag not in parameters:
            return None
        if flag in switches:
            value = "-" if equals else "true"
        elif not equals:
            value = next(rest, "-")
        if value.startswith("-"):
            return None
        found[parameters[flag]] = value
        if parameters[flag] in repeated:
            repeated[parameters[flag]].append(value)
    found |= {parameter: tuple(values) for parameter, values in repeated.items()}
    return found
