"""Unix sockets at paths: what is left of them."""

import errno
import os
from pathlib import Path

import pytest

from shmbroker import unix
from shmbroker.processes.held_directory import HeldDirectory
from shmbroker.settings.broker_config import BrokerConfig


def test_sockets_on_a_disk_that_became_read_only_do_not_fail_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = HeldDirectory(BrokerConfig(), tmp_path)
    control = tmp_path / unix.CONTROL_SOCKET
    control.touch()

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        directory.remove_sockets([1])
    assert control.exists()
    directory.remove_sockets([1])
    assert not control.exists()
