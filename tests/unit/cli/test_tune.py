"""`shmbroker tune`: advice from facts, by table; settings put into files that are there."""

import json
import os
from dataclasses import replace

import pytest
from click.testing import CliRunner

from shmbroker.cli import commands
from shmbroker.cli.outcome import CommandFault
from shmbroker.cli.tune import command, measuring
from shmbroker.cli.tune.advice import (
    IO_WORKERS,
    NETWORK_WORKERS,
    RING_BYTES,
    advise,
    candidates,
    gain,
    notes,
    split,
)
from shmbroker.cli.tune.facts import (
    LARGE,
    LOADS,
    MANY,
    SMALL,
    Candidate,
    Costs,
    System,
    Trial,
    TuneFacts,
)
from shmbroker.cli.tune.settings_file import apply, changed
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.settings.java_properties import properties

GIB, MIB = 1 << 30, 1 << 20
NOW = {NETWORK_WORKERS: "2", IO_WORKERS: "1", RING_BYTES: str(8 * MIB)}
FINE = System(
    cores=2,
    memory_bytes=16 * GIB,
    dirty_ratio=20,
    huge_pages="madvise",
    somaxconn=4096,
    open_files=1 << 20,
    read_ahead_kb=128,
    disk="vda",
)
"""A host that nothing is wrong with, if its disk writes 500 MB/s."""


def facts(system=FINE, trials=(), baseline=None, costs=None, **cpu_us):
    costs = costs or Costs(write_rate=500e6, cold_read_rate=1e9, ahead_read_rate=1e9)
    cpu = {name.replace("_", "-"): us for name, us in cpu_us.items()}
    return TuneFacts(system, costs, dict(NOW), baseline, list(trials), cpu)


def trial(settings, small=1.0, many=1.0, large=1.0, rounds=6):
    """One that is so many times as fast as BASE in each round; a list says it round by round."""
    rates = {}
    for load, ratio in zip(LOADS, (small, many, large), strict=True):
        each = ratio if isinstance(ratio, list) else [ratio] * rounds
        rates[load] = [1000 * value for value in each]
    return Trial(Candidate("a candidate", settings), rates)


BASE = trial({})
ONE = {NETWORK_WORKERS: "1"}
FOUR = {NETWORK_WORKERS: "4"}


@pytest.mark.parametrize(
    ("tried", "gains"),
    [
        (trial(ONE), False),
        (trial(ONE, 1.2, 1.2, 1.2), True),
        (trial(ONE, 1.05, 1.05, 1.05), False),
        (trial(ONE, 1.0, 1.5, 1.0), True),
        (trial(ONE, 0.8, 2.0, 1.2), False),  # who waits for each answer would pay for it
        (trial(ONE, *[[3.0, 3.0, 3.0, 0.9, 0.9, 0.9]] * 3), False),  # in three rounds of six only
        (trial(ONE, *[[1.3, 1.3, 1.3, 1.3, 0.9, 0.9]] * 3), True),
        (trial(ONE, rounds=0), False),
    ],
)
def test_candidate_gains_where_it_is_faster_for_sure(tried, gains):
    assert (gain(tried, BASE) is not None) is gains


def test_best_candidate_of_a_setting_is_advised_with_its_gain():
    rows = advise(
        facts(
            baseline=BASE,
            trials=[trial(ONE, 1.2, 1.2, 1.2), trial(FOUR, 1.5, 1.5, 1.5), trial({}, 9, 9, 9)],
        )
    )
    ((name, now, advised, found),) = [(r.name, r.now, r.advised, r.gain) for r in rows]
    assert (name, now, advised) == (NETWORK_WORKERS, "2", "4")
    assert found == pytest.approx(1.5)
    assert rows[0].is_setting


def test_host_that_is_well_gets_no_advice():
    assert advise(facts(baseline=BASE, trials=[trial(ONE), trial({RING_BYTES: "1"})])) == []


def test_nothing_known_is_nothing_advised():
    assert advise(TuneFacts(settings=dict(NOW))) == []
    assert notes(TuneFacts(settings=dict(NOW))) == []


@pytest.mark.parametrize(
    ("changes", "costs", "name", "command"),
    [
        ({"somaxconn": 128}, {}, "net.core.somaxconn", "sysctl -w net.core.somaxconn=4096"),
        ({"huge_pages": "always"}, {}, "transparent_hugepage", "echo madvise > "),
        ({"open_files": 4096}, {}, "open files", "ulimit -Hn 1048576"),
        # 3.2 GiB at 50 MB/s are 69 s; ten seconds of them are 500 MB
        ({}, {"write_rate": 50e6}, "vm.dirty_bytes", "sysctl -w vm.dirty_bytes=469762048 "),
        # 3.2 GiB at 5 GB/s are less than a second
        ({}, {"write_rate": 5e9}, "vm.dirty_bytes", "sysctl -w vm.dirty_bytes=4294967296 "),
        ({"dirty_bytes": 64 * MIB}, {"write_rate": 2e8}, "vm.dirty_bytes", "sysctl -w vm.dirty"),
        ({}, {"ahead_read_rate": 1.5e9}, "read_ahead_kb", "echo 256 > /sys/block/vda/queue/"),
    ],
)  # fmt: skip
def test_host_is_told_by_commands(changes, costs, name, command):
    known = {"write_rate": 500e6, "cold_read_rate": 1e9, "ahead_read_rate": 1e9} | costs
    (row,) = advise(facts(replace(FINE, **changes), costs=Costs(**known)))
    assert row.name == name
    assert row.command.startswith(command)
    assert not row.is_setting


@pytest.mark.parametrize(
    ("cores", "cpu", "advised"),
    [
        (4, {"network_worker": 10, "io_worker": 10}, None),
        (8, {"network_worker": 10, "io_worker": 10}, "3"),
        (32, {"network_worker": 20, "io_worker": 10}, "9"),
        (8, {"network_worker": 60, "io_worker": 5}, None),
        (8, {}, None),
    ],
)
def test_io_workers_follow_from_cores_and_cpu_and_are_for_new_directories(cores, cpu, advised):
    rows = advise(facts(replace(FINE, cores=cores), **cpu))
    assert [row.advised for row in rows] == ([advised] if advised else [])
    assert not any(row.is_setting for row in rows)


@pytest.mark.parametrize("cores", [2, 8, 32, 128, 500])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_split_stays_within_the_cores_and_the_bounds_of_the_settings(cores, share):
    networks, ios = split(cores, share, 1 - share)
    assert 1 <= networks <= 64
    assert 1 <= ios <= 64
    assert networks + ios <= max(2, cores)


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_candidates_are_other_values_that_a_start_takes(cores):
    found = candidates(cores, NOW)
    assert len({each.name for each in found}) == len(found)
    for each in found:
        for name, value in each.settings.items():
            assert value != NOW[name]
            BrokerConfig.load(None, [f"{name}={value}"])
    assert any(each.pins for each in found) == (cores > 1)


def test_notes_say_what_each_candidate_did():
    told = notes(facts(baseline=BASE, trials=[trial(ONE, 0.5, 2.0, 1.0)]))
    assert told == [
        f"a candidate: {SMALL} 0.50, {MANY} 2.00, {LARGE} 1.00 times the requests/s, 6 rounds"
    ]


# ── files ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "a.b=2\n"),
        ("# why\nx=1\n", "# why\nx=1\na.b=2\n"),
        ("x=1\na.b = 1\n\ny=2\n", "x=1\na.b=2\n\ny=2\n"),
        ("a.b: 1", "a.b=2\n"),
        ("a.b=1\nx=1\na.b=7\n", "a.b=1\nx=1\na.b=2\n"),  # the last one counts
        ("#a.b=1\na.b.c=1\n", "#a.b=1\na.b.c=1\na.b=2\n"),
        ("x=1,\\\n  a.b=3\na.b=\\\n 4\nz=1\n", "x=1,\\\n  a.b=3\na.b=2\nz=1\n"),
        ("x=c:\\\\\na.b=1\n", "x=c:\\\\\na.b=2\n"),  # two backslashes: it doesn't go on
        ("a\\u002eb 1\nx=1\n", "a.b=2\nx=1\n"),
    ],
)
def test_properties_keep_their_other_lines(before, after):
    assert changed(before, {"a.b": "2"}, is_toml=False) == after
    assert properties(after)["a.b"] == "2"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "'a.b' = 2\n"),
        ("'x' = 1  # why\n[log]\nb = 1\n", "'x' = 1  # why\n'a.b' = 2\n[log]\nb = 1\n"),
        ('"a.b" = 1\nx = 1\n', "'a.b' = 2\nx = 1\n"),
        ("a.b=1\n", "'a.b' = 2\n"),
    ],
)
def test_toml_keeps_its_other_lines(before, after):
    assert changed(before, {"a.b": "2"}, is_toml=True) == after


def test_file_is_replaced_and_what_it_was_lies_beside_it(tmp_path):
    path = tmp_path / "broker.properties"
    path.write_text("x=1\nshmbroker.network.workers=2\n")
    path.chmod(0o640)
    first = apply(str(path), {NETWORK_WORKERS: "4"})
    second = apply(str(path), {NETWORK_WORKERS: "8"})
    assert path.read_text() == "x=1\nshmbroker.network.workers=8\n"
    assert path.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "broker.properties.bak").read_text().endswith("workers=2\n")
    assert [first, second] == [f"{path}.bak", f"{path}.bak2"]
    assert sorted(os.listdir(tmp_path)) == [
        "broker.properties", "broker.properties.bak", "broker.properties.bak2",
    ]  # fmt: skip


def test_file_that_is_not_there_is_made(tmp_path):
    path = tmp_path / "new.toml"
    assert apply(str(path), {NETWORK_WORKERS: "4"}) is None
    assert BrokerConfig.load(str(path))[NETWORK_WORKERS] == 4


@pytest.mark.parametrize(
    "text", ["[shmbroker.network]\nworkers = 2\n", "[shmbroker]\nnetwork.workers = 2\n"]
)
def test_form_that_is_not_known_stays_as_it_is(text, tmp_path):
    path = tmp_path / "broker.toml"
    path.write_text(text)
    with pytest.raises(CommandFault, match=r"set shmbroker\.network\.workers by hand"):
        apply(str(path), {NETWORK_WORKERS: "4"})
    assert path.read_text() == text
    assert os.listdir(tmp_path) == ["broker.toml"]


def test_directory_that_is_not_ours_is_one_sentence(tmp_path):
    with pytest.raises(CommandFault, match=r"can't be changed: .*; run it as the file's owner"):
        apply(str(tmp_path / "nowhere" / "broker.properties"), {NETWORK_WORKERS: "4"})


# ── the command ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """The command on a host that was measured: four network workers gain by half."""
    found = facts(replace(FINE, somaxconn=128), baseline=BASE, trials=[trial(FOUR, 1.5, 1.5, 1.5)])
    monkeypatch.setattr(measuring, "measure", lambda *_: found)
    config = tmp_path / "broker.properties"
    config.write_text("# ours\nshmbroker.network.workers=2\n")

    def run(*words):
        return CliRunner().invoke(command, ["--config", str(config), *words]), config

    return run


def test_what_would_change_is_shown_and_nothing_is_written(tuned):
    told, config = tuned()
    assert told.exit_code == 0
    rows = [line.split()[:4] for line in told.output.splitlines()]
    assert [NETWORK_WORKERS, "2", "4", "1.50"] in rows
    assert "  sysctl -w net.core.somaxconn=4096\n" in told.output
    assert f"--config {config} --apply writes the settings there" in told.output
    assert config.read_text() == "# ours\nshmbroker.network.workers=2\n"


def test_apply_writes_settings_but_no_commands(tuned):
    told, config = tuned("--apply", "--json")
    report = json.loads(told.output)
    assert [row["name"] for row in report["advice"]] == [NETWORK_WORKERS, "net.core.somaxconn"]
    assert report["written"] == str(config)
    assert report["backup"] == f"{config}.bak"
    assert config.read_text() == "# ours\nshmbroker.network.workers=4\n"


@pytest.mark.parametrize(("load", "is_told"), [(0.4, False), (3.0, True)])
def test_busy_host_is_told_that_its_figures_may_be_chance(tuned, monkeypatch, load, is_told):
    monkeypatch.setattr("os.getloadavg", lambda: (load, load, load))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    told, _ = tuned()
    assert ("the load was 3.0 on 2 cores before" in told.stderr) == is_told


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--apply",), "--apply needs --config FILE"),
        (("--config", "nowhere.properties"), "nowhere.properties is not there"),
        (("--config", "wrong.properties"), NETWORK_WORKERS),
        (("--data", "/proc/self"), "name another by --data"),
    ],
)
def test_what_can_not_be_done_is_one_sentence(tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wrong.properties").write_text("shmbroker.network.workers=many\n")
    told = CliRunner().invoke(commands.main, ["tune", *words])
    assert told.exit_code == 1
    (line,) = told.stderr.splitlines()
    assert says in line
    assert told.stdout == ""
