"""What systemd is told must not hold up the supervisor."""

import socket
from pathlib import Path

import pytest

from shmbroker.processes import sd_notify

QUEUE_MAX = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())


def test_manager_that_does_not_read_holds_nobody_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sd_notify, "WAIT_S", 0.001)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", manager.getsockname())
        for number in range(QUEUE_MAX + 5):
            sd_notify.notify(f"STATUS={number}")
        assert manager.recv(100) == b"STATUS=0"


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, 0.0),
        ({"WATCHDOG_USEC": "20000000"}, 20.0),
        ({"WATCHDOG_USEC": "20000000", "WATCHDOG_PID": "1"}, 0.0),
        ({"WATCHDOG_USEC": "x"}, 0.0),
    ],
)
def test_watchdog_is_fed_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: float
) -> None:
    for name in ("WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert sd_notify.watchdog_s() == expected


@pytest.mark.parametrize(
    ("watchdog_s", "kill_ms", "is_wrong"),
    [(0, 8000, False), (30, 8000, False), (13, 8000, False), (12, 8000, True), (3, 0, False)],
)
def test_impatient_service_manager_is_told_of(
    watchdog_s: float, kill_ms: int, is_wrong: bool
) -> None:
    assert bool(sd_notify.watchdog_complaint(watchdog_s, kill_ms)) == is_wrong
