"""`shmbroker tune` as it is called: real brokers on trial, and a file that is left as it is."""

import json
import os
import subprocess
import sys


def test_host_is_measured_and_nothing_is_left_or_changed(tmp_path):
    config = tmp_path / "broker.properties"
    config.write_text("# ours\nshmbroker.network.workers=2\n")
    words = ("--seconds", "2", "--config", str(config), "--data", str(tmp_path / "data"), "--json")
    told = subprocess.run(
        [sys.executable, "-m", "shmbroker", "tune", *words],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    assert report["measured"]["wake_us"] > 0
    assert report["measured"]["write_rate"] > 0
    assert report["settings"]["shmbroker.network.workers"] == "2"
    first, *others = report["trials"]
    assert first["candidate"] == "the settings of now"
    assert others
    for trial in report["trials"]:
        assert all(len(rates) >= 3 and min(rates) > 0 for rates in trial["requests_per_s"].values())
    assert report["written"] is None
    assert os.listdir(tmp_path) == ["broker.properties"]
    assert config.read_text() == "# ours\nshmbroker.network.workers=2\n"
