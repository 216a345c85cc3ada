"""Output that nobody reads, or that has no room."""

import errno
import io
import logging
import os
import sys

import pytest

from shmbroker.processes import output

FULL = "/dev/full"


@pytest.fixture
def unread():
    """A pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w", buffering=1)
    yield stream
    stream.close()


def logger_on(stream):
    logger = logging.Logger("output")
    logger.addHandler(output.StderrHandler(stream))
    return logger


def test_line_for_nobody_is_left_out_and_those_after_it_cost_nothing(unread, monkeypatch):
    monkeypatch.setattr(sys, "stderr", unread)
    logger_on(unread).warning("nobody reads this")
    assert os.readlink(f"/proc/self/fd/{unread.fileno()}") == os.devnull
    logger_on(unread).warning("nor this")
    output.say("nor this", unread)


def test_line_without_room_is_left_out(monkeypatch):
    with open(FULL, "w", buffering=1) as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        logger_on(stream).warning("no room for this")
        output.say("nor this", stream)
        assert os.readlink(f"/proc/self/fd/{stream.fileno()}") == FULL
    # and nothing is left that its end would write


def test_mistakes_of_ours_are_still_shown(monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    logger_on(io.StringIO()).warning("%d", "no number")
    assert "TypeError" in shown.getvalue()


def test_closed_standard_descriptors_are_taken_before_a_socket_gets_them():
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            for fd in (0, 1, 2):
                os.close(fd)
            sys.stdout = sys.stderr = None
            output.open_closed()
            print("to nobody")
            output.flush()
            taken = os.open(os.devnull, os.O_RDONLY)
            status = 0 if taken > 2 and os.fstat(1) and sys.stdout.fileno() == 1 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_flush_passes_other_faults_over(monkeypatch):
    flushed = []

    class Stream(io.StringIO):
        def flush(self):
            flushed.append(self)
            raise OSError(errno.EIO, "gone")

    out, err = Stream(), Stream()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    output.flush()
    assert flushed == [out, err]
