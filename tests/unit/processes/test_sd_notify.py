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
