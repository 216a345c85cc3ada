"""Figures in documents that follow from constants of the code."""

import re

import pytest

from shmbroker.broker import read_lookup
from shmbroker.cli.doctor import CHECKS
from shmbroker.errors import ConfigFault
from shmbroker.gateway import event_loop, fetch_session
from shmbroker.groups import group_memory
from shmbroker.metadata.features import SUPPORTED_FEATURES
from shmbroker.processes import shared_resources
from shmbroker.settings.broker_config import BrokerConfig
from shmbroker.shm import address_counts, positions, quota_counts, standing
from shmbroker.wire import codec
from tests.tidy.sources import ROOT

MIB = 1 << 20


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


LIMITS = [
    ("request", r"([\d,]+) elements", codec.REQUEST_ELEMENTS_MAX),
    ("requests in flight on a connection", r"([\d,]+) Produce", event_loop.INFLIGHT_MAX),
    ("records of an answer", r"of ([\d,]+) partitions", read_lookup.READS_MAX),
    ("groups", r"([\d,]+) regular expressions", group_memory.REGEXES_MAX),
    ("groups", r"oldest beyond ([\d,]+)", group_memory.IDLE_GROUPS_MAX),
    ("fetch sessions", r"([\d,]+) partitions in one", fetch_session.SESSION_PARTITIONS_MAX),
    ("fetch sessions", r"([\d,]+) in all", fetch_session.PARTITIONS_MAX),
    ("partitions", r"beyond ([\d,]+)", shared_resources.POSITION_ENTRIES),
]


@pytest.mark.parametrize(("what", "pattern", "limit"), LIMITS, ids=lambda value: str(value))
def test_limits_of_readme_are_those_of_the_code(what, pattern, limit):
    [row] = re.findall(rf"^\| {what} \| (.*) \|$", text_of("README.md"), re.MULTILINE)
    assert int(re.search(pattern, row)[1].replace(",", "")) == limit


def test_sum_that_the_doctor_prints_counts_its_checks():
    total, levels = re.search(
        r"^ +(\d+) checks: (.*)$", text_of("docs/doctor.md"), re.MULTILINE
    ).groups()
    assert int(total) == len(CHECKS) == sum(map(int, re.findall(r"\d+", levels)))


def test_room_in_dev_shm_is_that_of_the_tables():
    line = re.search(r"^\* \*\*`/dev/shm`\*\*.*", text_of("docs/operations.md"), re.MULTILINE)[0]
    told = {what: float(mib) for mib, what in re.findall(r"([\d.]+) MiB for each ([\w /]+)", line)}
    data_ring = BrokerConfig()["shmbroker.ring.data.bytes"]
    tables = positions.table_bytes(shared_resources.POSITION_ENTRIES) + standing.table_bytes()
    assert told == {
        "pair of network worker and I/O worker": (data_ring + shared_resources.RESULT_RING_BYTES)
        / MIB,
        "ordered pair of I/O workers": shared_resources.RESULT_RING_BYTES / MIB,
        "I/O worker": round(tables / MIB, 2),
    }


def test_sizes_of_regions_are_those_of_the_tables():
    text = text_of("ARCHITECTURE.md")
    quotas = quota_counts.table_bytes(quota_counts.BY_DEFAULT.number)
    for pattern, size in (
        (r"positions \| ([\d.]+) MiB", positions.table_bytes(shared_resources.POSITION_ENTRIES)),
        (r"standing \| ([\d.]+) KiB", standing.table_bytes() << 10),
        (r"addresses, quotas \| ([\d.]+) KiB", address_counts.table_bytes() + quotas << 10),
    ):
        assert round(size / MIB, 2) == float(re.search(pattern, text)[1]), pattern


def test_readme_says_what_a_start_needs_in_dev_shm(monkeypatch, tmp_path):
    asked = []

    def refuse(size_bytes):
        asked.append(size_bytes)
        raise ConfigFault("no room")

    monkeypatch.setattr(shared_resources, "require_room", refuse)
    config = BrokerConfig()
    with pytest.raises(ConfigFault):
        shared_resources.SharedResources(
            str(tmp_path),
            2,
            [1],
            [1],
            config["shmbroker.ring.data.bytes"],
            config["shmbroker.ring.control.bytes"],
        )
    told = int(re.search(r"some (\d+) MiB free in `/dev/shm`", text_of("README.md"))[1])
    assert asked[0] / MIB <= told < asked[0] / MIB + 2


def test_features_that_are_named_are_those_that_are_served():
    text = text_of("docs/apis.toml")
    lines = [
        *re.findall(r"^UpdateFeatures = .*", text, re.MULTILINE),
        *re.findall(r'^where = "ApiVersions"\n.*\n(here = .*)', text, re.MULTILINE),
    ]
    assert len(lines) == 2
    for line in lines:
        assert set(re.findall(r"`([a-z.]+)`", line)) == set(SUPPORTED_FEATURES)
