"""Lines of which a flood of clients causes many."""

import logging

import pytest

from shmbroker.gateway.seldom_log import INTERVAL_S, LINES_MAX, SeldomLog


def test_a_few_lines_and_a_number(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tests.seldom")
    seldom = SeldomLog(logger)
    for which in range(300):
        seldom.warn("slow", f"client {which} was slow", 100.0 + which / 100)
    seldom.warn("alone", "client 300 was alone", 104.0)
    assert len(caplog.messages) == LINES_MAX + 1
    seldom.flush(100.0 + INTERVAL_S - 0.1)
    assert len(caplog.messages) == LINES_MAX + 1
    seldom.flush(100.0 + INTERVAL_S)
    assert caplog.messages[LINES_MAX + 1 :] == [f"{300 - LINES_MAX} more connections: slow"]
    seldom.flush(200.0)
    seldom.warn("slow", "another", 200.0)
    assert caplog.messages[LINES_MAX + 2 :] == ["another"]
