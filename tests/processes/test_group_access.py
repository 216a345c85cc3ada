"""A family whose group may read: what is on the disk, and what stays the owner's."""

import stat
from pathlib import Path

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now, read_values
from tests.support.raw_client import RawClient

TOPIC = "shared"


def _modes(data: Path) -> set[tuple[str, int]]:
    """What each path may, by what it is."""
    found = set()
    for path in data.rglob("*"):
        is_own = "__cluster_metadata-0" in path.parts or path.name == ".supervisor.lock"
        kind = "directory" if path.is_dir() else path.suffix if path.suffix == ".sock" else "file"
        if is_own and path.name not in ("__cluster_metadata-0", ".supervisor.lock"):
            continue
        found.add(("own" if is_own else kind, stat.S_IMODE(path.stat().st_mode)))
    return found


def test_group_reads_what_was_there_and_what_comes_and_can_be_shut_out_again(
    tmp_path: Path,
) -> None:
    with Broker(data=tmp_path) as broker, RawClient(broker.address) as client:
        client.create_topic("before")
        assert client.produce("before", batch_now(b"1"))["error_code"] == 0
    with (
        Broker("--set", "shmbroker.data.access=group", data=tmp_path) as broker,
        RawClient(broker.address) as client,
    ):
        client.create_topic(TOPIC)
        assert client.produce(TOPIC, batch_now(b"2"))["error_code"] == 0
        modes = _modes(tmp_path)
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o750
        assert {("directory", 0o750), ("file", 0o640), (".sock", 0o660)} <= modes
        assert {kind for kind, mode in modes if mode & 0o007} == set()
        assert {mode for kind, mode in modes if kind == "own"} == {0o700, 0o600}
    with (
        Broker("--set", "shmbroker.data.access=owner", data=tmp_path) as broker,
        RawClient(broker.address) as client,
    ):
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700
        assert stat.S_IMODE((tmp_path / "control.sock").stat().st_mode) == 0o600
        assert read_values(client, TOPIC, 0) == [b"2"]
