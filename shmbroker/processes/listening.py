"""Listening sockets for clients, one for each broker and listener.

The supervisor opens them before it forks, and keeps them: so a worker that dies takes no port with
it, and its successor accepts where it left off.

    passed    a service manager has bound it (`activation`); clients wait out even a restart
    TCP       bound here, at the listener's port and, for further brokers, at the ports behind it
    Unix      bound here, at a path, with the mode and group that the settings name

Rules of this file:
* What can't be had, or can't be asked of clients with these settings, is a ConfigFault before
  anything is forked. It names the setting or the flag to change.
* A socket that is passed and that no listener names is a fault, too: who passed it meant something.
* What is doubtful but allowed, as a listener that lets everybody in, is logged, and opened.
* A Unix socket is nobody's until its mode and group are set. Of what lies at its path only a socket
  that nobody answers at is removed.
* OpenSSL is imported for listeners with TLS or SASL only: it is a few MiB.
"""

from __future__ import annotations

import errno
import grp
import logging
import os
import socket
import stat

from shmbroker.errors import ConfigFault
from shmbroker.gateway.listener import Listener
from shmbroker.processes import activation
from shmbroker.security.tokens import key_of
from shmbroker.settings.listener_doubts import doubts
from shmbroker.settings.listeners import PLAINTEXT, address_text

NO_ADDRESS = (errno.EADDRNOTAVAIL, errno.EINVAL)
"""What the kernel says of an address that this host does not have; the second of one of a link."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from shmbroker.gateway.tls_context import TlsContext
    from shmbroker.settings.broker_config import BrokerConfig
    from shmbroker.settings.listeners import ListenerConfig

logger = logging.getLogger(__name__)


def open_all(config: BrokerConfig) -> list[Listener]:
    """Every listener of every broker; the first listener's come first. ConfigFault, which names
    what to change, where one can't be had."""
    passed = activation.passed()
    key_of(config, os.environ)  # so that what is wrong is said now
    if config["listeners"] is None:
        return _open_default(config, passed)
    found = []
    for one in config.listeners:
        tls = check(config, one)
        mine = [each for each in passed if _is_of(each, one, len(config.nodes))]
        passed = [each for each in passed if each not in mine]
        found += _open(config, one, mine, tls=tls)
    if passed:
        where = address_text(*passed[0].getsockname()[:2])
        raise ConfigFault(
            f"The port that is passed is {where}, but listeners names none such: "
            f"{activation.CHANGE}, or add it to listeners."
        )
    return found


def check(config: BrokerConfig, one: ListenerConfig) -> TlsContext | None:
    """What its TLS is made of, if it has any. ConfigFault where what a listener asks of its clients
    can't be asked with these settings."""
    key_of(config, os.environ)
    if one.has_sasl:
        from shmbroker.security.sasl.offered import offered  # OpenSSL is a few MiB

        offered(config, one.name, os.environ)
    return _tls_of(config, one) if one.has_tls else None


def _open_default(config: BrokerConfig, passed: list[socket.socket]) -> list[Listener]:
    """Open the listener of shmbroker.host and shmbroker.port, or of what was passed."""
    (one,) = config.listeners
    wanted = activation.WantedPorts(
        len(config.nodes),
        one.host if "shmbroker.host" in config.static else "",
        one.port if "shmbroker.port" in config.static else 0,
    )
    if passed:
        host, port = passed[0].getsockname()[:2]
        one = one._replace(host=wanted.host or host, port=wanted.port or port)
    return _open(config, one, passed, wanted)


def _open(
    config: BrokerConfig,
    one: ListenerConfig,
    passed: list[socket.socket],
    wanted: activation.WantedPorts | None = None,
    tls: TlsContext | None = None,
) -> list[Listener]:
    if wanted is None:
        wanted = activation.WantedPorts(len(config.nodes), one.host, max(one.port, 0))
    places = activation.assign([each.getsockname()[:2] for each in passed], wanted)
    if passed and None in places:
        logger.warning(
            "%d of %d brokers have a port of the service manager's; clients of the others "
            "are refused during a restart: a ListenStream= for each avoids that",
            len(passed),
            len(places),
        )
    backlog = config["socket.listen.backlog.size"]
    flag = "--port" if config["listeners"] is None else "--set listeners=…"
    found = []
    for place, (number, given) in enumerate(zip(config.nodes, places, strict=True)):
        if given is not None:
            bound = passed[given]
        elif one.is_unix:
            bound = _listen_at(config, one, place, backlog)
        else:
            bound = listen_on(one.host, one.port_of(place), backlog, flag)
        listener = Listener(bound, number, False, one, place)
        listener.tls = tls
        found.append(listener)
    _warn(config, one, [listener.bound() for listener in found])
    return found


def _tls_of(config: BrokerConfig, one: ListenerConfig) -> TlsContext:
    """The keys and certificates of a listener."""
    from shmbroker.gateway import tls_context  # a broker without TLS does without OpenSSL

    return tls_context.load(config, one)


def tls_again(config: BrokerConfig, listeners: list[Listener]) -> Callable[[], None]:
    """Read keys and certificates again: what makes workers that start from then on begin with them.
    ConfigFault: they can't be used."""
    loaded = {
        listener.config.name: _tls_of(config, listener.config)
        for listener in {one.config.name: one for one in listeners if one.tls}.values()
    }

    def take() -> None:
        for listener in listeners:
            if listener.config.name in loaded:
                listener.tls = loaded[listener.config.name]

    return take


def _is_of(passed: socket.socket, one: ListenerConfig, brokers: int) -> bool:
    return not one.is_unix and 0 <= passed.getsockname()[1] - one.port < brokers


def _warn(config: BrokerConfig, one: ListenerConfig, bound: list[tuple[str, int]]) -> None:
    """Say what is doubtful about a listener: for instance that all may come, and do everything."""
    for doubt in doubts(config, one, address_text(*bound[0])):
        logger.warning("%s", doubt)


def shown(listener: Listener) -> str:
    """Where one listens, and what its clients are told if that is something else."""
    config = listener.config
    host, port = listener.bound()
    where = host if config.is_unix else address_text(config.host or host, port)
    said = [] if config.protocol == PLAINTEXT else [config.name]
    said.append(f"broker {listener.broker_id}")
    if config.told_host:
        said.append(f"clients are told {address_text(*listener.told())}")
    return f"{where} ({', '.join(said)})"


def listen_on(host: str, port: int, backlog: int, flag: str) -> socket.socket:
    """A listening socket; ConfigFault, which names the flag, if there is none to be had. host:
    "" is every interface, by IPv4 and, where there is, IPv6."""
    is_ipv6 = ":" in host or (not host and _has_ipv6())
    listening = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if is_ipv6:
        # "::" and an IPv4 listener of the same port stand beside each other (KIP-797).
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, bool(host))
    try:
        listening.bind((host or ("::" if is_ipv6 else ""), port))
        listening.listen(backlog)
    except OSError as fault:
        listening.close()
        where = address_text(host, port)
        if isinstance(fault, socket.gaierror) or fault.errno in NO_ADDRESS:
            flag = "--host" if flag == "--port" else flag
            raise ConfigFault(
                f"Can't listen on {where}: {fault.strerror}; name an address of this host with "
                f"{flag}."
            ) from fault
        raise ConfigFault(
            f"Can't listen on {where}: {fault.strerror}; choose another port with {flag}."
        ) from fault
    return listening


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as trial:
            trial.bind(("::", 0))
    except OSError:
        return False
    return True


def _listen_at(
    config: BrokerConfig, one: ListenerConfig, place: int, backlog: int
) -> socket.socket:
    """A Unix socket that clients reach by their rights on it. What a broker has left there is
    removed; anything else, or a socket that answers, is not."""
    path = one.path_of(place)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        group = config.of_listener(one.name, "shmbroker.unix.group")
        # Nobody gets in between, by a mode that is wider than the one asked for.
        mask = os.umask(0o177)
        try:
            listening.bind(path)
        finally:
            os.umask(mask)
        if group:
            os.chown(path, -1, grp.getgrnam(group).gr_gid)
        os.chmod(path, int(config.of_listener(one.name, "shmbroker.unix.mode"), 8))
        listening.listen(backlog)
    except KeyError:
        listening.close()
        raise ConfigFault(
            f"There is no group {group}, which shmbroker.unix.group names: add it (groupadd "
            f"{group}), or name another."
        ) from None
    except OSError as fault:
        listening.close()
        raise ConfigFault(
            f"Can't listen on {path}: {fault.strerror}; name another path in listeners, in a "
            "directory that is there."
        ) from fault
    return listening


def _remove_stale(path: str) -> None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ConfigFault(
            f"{path} is no socket, so it is left alone: name another path in listeners."
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ConfigFault(f"Somebody listens on {path} already: stop it, or name another path.")
