"""The service on a machine of its own, where one can be had: the short part of it."""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.systemd_machine import HIDDEN

ROOT = Path(__file__).parents[2]
BOX = os.environ.get("SHMBROKER_SYSTEMD_BOX", str(ROOT / "../shared/tools/systemd_box"))
SHORT = "confined or exposure or reload or first_connection or broken_setting"


@pytest.mark.systemd
@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.access(BOX, os.X_OK), reason="there is nothing that boots a systemd")
@pytest.mark.skipif(os.geteuid() != 0, reason="booting a systemd takes root")
@pytest.mark.skipif(
    sysconfig.get_path("purelib").startswith(HIDDEN),
    reason="this environment is where a service sees nothing: scripts/systemd_test makes another",
)
def test_installed_service_starts_confined_by_hand_and_by_its_socket() -> None:
    done = subprocess.run(
        [ROOT / "scripts" / "systemd_test", "-q", "-k", SHORT],
        # Without compiled kernels, which would take half of the time.
        env=os.environ
        | {"PYTHON": sys.executable, "SHMBROKER_SYSTEMD_BOX": BOX, "CC": "/bin/false"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
