"""Faults: what went wrong with a peer, a disk or the configuration, as exceptions.

A *fault* is an exception; an *error* is a wire error code and always an int value, never raised
(`shmbroker.wire.error_codes`). A broken invariant is an `assert`: it ends the process, and the
supervisor starts another one.
"""

import re

_ERRNO = re.compile(r"\[Errno \d+\] ")
_PATH = re.compile(r": '(/[^']+)'")


def plain(text: str) -> str:
    """A sentence without the kernel's numbers of errors, as their words stand behind them, and
    without a path that stands behind those although the sentence has named it."""
    text = _ERRNO.sub("", text)
    return _PATH.sub(lambda path: "" if path[1] in text[: path.start()] else path[0], text)


def one_line(text: str) -> str:
    """The text without what would end its line, or lead a terminal astray: that is escaped."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


class Fault(Exception):
    """Base of everything that this package raises on purpose."""


class ProtocolFault(Fault):
    """A peer sent bytes that do not parse; its connection is closed, with one log line."""


class TlsFault(ProtocolFault, OSError):
    """A peer's TLS can't be understood, or its certificate is not accepted. An OSError as well: it
    comes where the socket's own do."""


class BrokerGoneFault(Fault):
    """A broker hangs or stops. The connection of who asks it is closed, for no fault of that
    client: it looks for another broker."""


class StorageFault(Fault):
    """The disk refused or lost something; the log directory it happened in is fenced."""

    def __init__(self, message: str, path: str = "") -> None:
        """path: the file or directory that it is about, if it is one."""
        super().__init__(message)
        self.path = path


class CorruptFault(StorageFault):
    """A file's content is not what it must be; the message names the file and the position."""


class ConfigFault(Fault):
    """A setting, flag or directory can't be used; the message is one sentence with the fix."""
