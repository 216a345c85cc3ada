"""`shmbroker tune` as it is called: real brokers on trial, and a file that is changed or not."""

import json
import os
import subprocess
import sys

import pytest


def tune(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "shmbroker", "tune", "--seconds", "2", *words],
        capture_output=True,
        text=True,
        timeout=110,
        env=os.environ | environment,
    )


def test_host_is_measured_and_nothing_is_left_or_changed(tmp_path):
    config = tmp_path / "broker.properties"
    config.write_text("# ours\nshmbroker.network.workers=2\n")
    told = tune("--config", str(config), "--data", str(tmp_path / "data"), "--json")
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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--apply",), "--apply needs --config FILE"),
        (("--config", "nowhere.properties"), "nowhere.properties is not there"),
        (("--data", "/proc/self"), "name another by --data"),
    ],
)
def test_what_can_not_be_done_is_one_sentence(words, says):
    told = tune(*words)
    assert told.returncode == 1
    assert says in told.stderr
    assert "Traceback" not in told.stderr


def test_settings_that_no_broker_takes_are_one_sentence(tmp_path):
    config = tmp_path / "broker.properties"
    config.write_text("shmbroker.network.workers=many\n")
    told = tune("--config", str(config))
    assert told.returncode == 1
    assert "shmbroker.network.workers" in told.stderr
