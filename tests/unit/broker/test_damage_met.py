"""Damage that readers meet: what they still get, and what is mended meanwhile."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from shmbroker.broker import damage
from shmbroker.broker.damage import DamageMender
from shmbroker.errors import CorruptFault, StorageFault
from shmbroker.log.checkpoints import CLEANER, read_offsets
from shmbroker.records.batch import encode_batch
from tests.support.waiting import wait_until
from tests.unit.broker.one_node import NOW_MS, SIZE, Node, Topic, node

__all__ = ["node"]


def settle(node: Node, mender: DamageMender) -> None:
    """Until it has nothing to do: its thread works on a few KiB."""

    def is_done() -> bool:
        mender.run(NOW_MS)
        return mender.looked_at is None

    wait_until(is_done, "the mender", between=0.001)
    node.sync()


def test_a_look_that_fails_leaves_room_for_the_next(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    for name in ("00000000000000000000.log", "00000000000000000010.log"):
        segment = node.directory(topic) / name
        content = bytearray(segment.read_bytes())
        content[SIZE + 90] ^= 1
        segment.write_bytes(content)
    node.start()
    partition = node.open(topic)
    mender = DamageMender(node.store, lambda _key: False)
    faults = []
    for offset in (1, 11):
        with pytest.raises(CorruptFault) as met:
            partition.log.read(offset, 10_000, 25)
        faults.append(met.value)
    with monkeypatch.context() as patch:
        patch.setattr(damage, "look_at", lambda *_: 1 // 0)
        mender.on_fault(partition, faults[0], NOW_MS)
        settle(node, mender)
    assert "ZeroDivisionError" in caplog.text
    mender.on_fault(partition, faults[1], NOW_MS)
    settle(node, mender)
    assert node.counted == ["log_damage"]


def test_a_fault_is_of_the_file_that_it_names_whatever_its_text_mentions(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 25)
    first, second, _ = partition.log.segments
    mender = DamageMender(node.store, lambda _key: False)
    beside = first.path + ".swap"
    mender.on_fault(partition, CorruptFault(f"{beside} has no whole batch", beside), NOW_MS)
    assert mender.looked_at is None
    mender.on_fault(partition, CorruptFault(f"unlike {first.path}", second.path), NOW_MS)
    assert mender.looked_at is second
    settle(node, mender)


@pytest.mark.parametrize("number", [3, 13, 23])
def test_reader_goes_on_behind_damage(node: Node, number: int, tmp_path: Path) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    segment = node.directory(topic) / f"{number // 10 * 10:020d}.log"
    content = bytearray(segment.read_bytes())
    content[number % 10 * SIZE + 90] ^= 1
    segment.write_bytes(content)
    node.start()
    partition = node.open(topic)
    mender = DamageMender(node.store, lambda _key: False)
    log = partition.log
    with pytest.raises(CorruptFault) as met:
        log.read(number, 10_000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    place = log.read(number, 10_000, 25)
    assert place is not None
    found, position, _ = place
    assert int.from_bytes(found.read_bytes(position, 8), "big") == number + 1
    assert node.counted == ["log_damage"]
    assert read_offsets(str(node.path / CLEANER)) == {("t", 0): number + 1}
    piece = tmp_path / "quarantine" / "node-1" / "t-0" / f"{number:020d}.log"
    assert piece.read_bytes() == bytes(content[number % 10 * SIZE :][:SIZE])
    batch = encode_batch([(NOW_MS, None, b"v", ())])
    assert log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS) == 25
    # A power cut later the same is there.
    log.flush()
    node.store.checkpoint()
    node.kill()
    node.start()
    again = node.open(topic).log
    assert again.log_end_offset == 26
    served = []
    offset = 0
    while offset < 26:
        segment_of, position, length = again.read(offset, 1, 26) or (None, 0, 0)
        assert length and segment_of is not None
        offset = int.from_bytes(segment_of.read_bytes(position, 8), "big")
        served.append(offset)
        offset += 1
    assert served == [at for at in range(26) if at != number]
    assert node.counted == ["log_damage"]


def test_start_that_scans_leaves_the_hole_itself(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 25)
    partition.log.flush()
    node.store.checkpoint()
    node.kill()
    path = node.directory(topic) / f"{20:020d}.log"
    content = bytearray(path.read_bytes())
    content[SIZE + 90] ^= 1
    path.write_bytes(content)
    path.with_suffix(".index").unlink(missing_ok=True)
    node.start()
    log = node.open(topic).log
    assert log.log_end_offset == 25
    segment, position, _ = log.read(21, 1000, 25) or pytest.fail("out of range")
    assert int.from_bytes(segment.read_bytes(position, 8), "big") == 22
    assert node.counted == ["log_damage"]
    assert read_offsets(str(node.path / CLEANER)) == {("t", 0): 22}


@pytest.mark.parametrize("is_directory", [False, True])
def test_reader_goes_on_behind_a_segment_that_is_no_file(node: Node, is_directory: bool) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    node.start()
    partition = node.open(topic)
    path = node.directory(topic) / f"{10:020d}.log"
    path.unlink()
    if is_directory:
        path.mkdir()
    mender = DamageMender(node.store, lambda _key: False)
    with pytest.raises(StorageFault) as met:
        partition.log.read(10, 1000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    place = partition.log.read(10, 1000, 25)
    assert place is not None
    assert place[0].base_offset == 20
    assert partition.log.cleaned_offset == 20
    assert node.counted == ["log_damage"]
    partition.log.flush()


@pytest.mark.parametrize("how", ["read", "append", "roll", "flush"])
@pytest.mark.parametrize("replicas", [(1,), (1, 2)])
def test_nothing_is_lost_of_an_active_segment_whose_file_is_removed(
    node: Node, how: str, replicas: tuple[int, ...]
) -> None:
    topic = Topic()
    partition = node.fill(topic, 25)
    log = partition.log
    partition.replicas = replicas
    mender = DamageMender(node.store, lambda _key: False)
    os.unlink(log.active.path)
    before = log.active.file_id
    large = encode_batch([(NOW_MS, None, b"v" * (40 << 10), ())])
    doing = {
        "read": lambda: log.active.fd,
        "append": lambda: log.append(memoryview(large), 0, NOW_MS, 0, NOW_MS),
        "roll": lambda: log.roll(NOW_MS),
        "flush": log.flush,
    }
    for _ in range(2):
        with pytest.raises(StorageFault) as met:
            doing[how]()
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    assert (log.log_end_offset, len(log.segments)) == (25, 3)
    assert node.store.dropped_file_ids == [before] != [log.active.file_id]
    for batch in (large, encode_batch([(NOW_MS, None, b"v", ())])):
        log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS)
    node.kill()
    node.start(is_successor=True)
    again = node.open(topic).log
    assert again.log_end_offset == 27
    for offset in range(27):
        segment, position, _ = again.read(offset, 1, 27) or pytest.fail("out of range")
        assert int.from_bytes(segment.read_bytes(position, 8), "big") == offset
    assert again.cleaned_offset <= 0


def test_a_removed_file_that_can_not_be_written_again_stays_in_the_map(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Topic()
    partition = node.fill(topic, 25)
    log = partition.log
    mender = DamageMender(node.store, lambda _key: False)
    os.unlink(log.active.path)
    with pytest.raises(StorageFault) as met:
        _ = log.active.fd

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        mender.on_fault(partition, met.value, NOW_MS)
    assert not os.path.exists(log.active.path)
    assert log.append(memoryview(encode_batch([(NOW_MS, None, b"v", ())])), 0, NOW_MS, 0, 0) == 25
    mender.on_fault(partition, met.value, NOW_MS)
    segment, position, _ = log.read(25, 1, 26) or pytest.fail("out of range")
    assert int.from_bytes(segment.read_bytes(position, 8), "big") == 25


def test_stray_segment_within_another_hides_nothing(node: Node) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    (node.directory(topic) / f"{15:020d}.log").touch()
    node.start()
    partition = node.open(topic)
    mender = DamageMender(node.store, lambda _key: False)
    with pytest.raises(CorruptFault) as met:
        partition.log.read(15, 1000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    for offset in range(25):
        segment, position, _ = partition.log.read(offset, 1, 25) or pytest.fail("out of range")
        assert int.from_bytes(segment.read_bytes(position, 8), "big") == offset
    assert partition.log.cleaned_offset == 0
    assert node.counted == ["log_damage"]


def test_where_other_replicas_are_readers_stay_refused(node: Node) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    path = node.directory(topic) / f"{0:020d}.log"
    content = bytearray(path.read_bytes())
    content[90] ^= 1
    path.write_bytes(content)
    node.start()
    partition = node.open(topic)
    partition.replicas = (1, 2)
    mender = DamageMender(node.store, lambda _key: False)
    with pytest.raises(CorruptFault) as met:
        partition.log.read(0, 1000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    assert path.read_bytes() == content
    with pytest.raises(CorruptFault):
        partition.log.read(0, 1000, 25)


@pytest.mark.parametrize("left", [0, 2])
def test_readers_go_on_where_a_file_was_cut_at_the_end_of_a_batch(node: Node, left: int) -> None:
    partition = node.fill(Topic(), 25)
    log = partition.log
    os.truncate(log.segments[1].path, left * SIZE)
    mender = DamageMender(node.store, lambda _key: False)
    with pytest.raises(StorageFault) as met:
        log.read(15, 10_000, 25)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    read = []
    for start in range(10, 25):
        place = log.read(start, SIZE, 25)
        assert place is not None
        found, position, length = place
        assert length
        read.append(int.from_bytes(found.read_bytes(position, 8), "big"))
    assert read == [*range(10, 10 + left), *[20] * (10 - left), *range(20, 25)]


def test_readers_go_on_where_the_last_segment_was_removed_before_anything_was_appended(
    node: Node,
) -> None:
    topic = Topic()
    node.fill(topic, 25)
    node.stop()
    node.start()
    partition = node.open(topic)
    log = partition.log
    os.unlink(log.active.path)
    mender = DamageMender(node.store, lambda _key: False)
    batch = encode_batch([(NOW_MS, None, b"v", ())])
    with pytest.raises(StorageFault) as met:
        log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS)
    mender.on_fault(partition, met.value, NOW_MS)
    settle(node, mender)
    assert log.append(memoryview(batch), 0, NOW_MS, 0, NOW_MS) == 25
    log.flush()
    for start in range(20, 26):
        place = log.read(start, 10_000, 26)
        assert place is not None
        found, position, length = place
        assert length
        assert int.from_bytes(found.read_bytes(position, 8), "big") == 25


def test_active_segment_is_written_again_where_its_directory_was_removed(node: Node) -> None:
    topic = Topic()
    partition = node.fill(topic, 5)
    log = partition.log
    mender = DamageMender(node.store, lambda _key: False)
    shutil.rmtree(log.directory)
    with pytest.raises(StorageFault) as met:
        _ = log.active.fd
    mender.on_fault(partition, met.value, NOW_MS)
    log.flush()
    node.stop()
    node.start()
    again = node.open(topic).log
    for offset in range(5):
        segment, position, _ = again.read(offset, 1, 5) or pytest.fail("out of range")
        assert int.from_bytes(segment.read_bytes(position, 8), "big") == offset
    assert node.counted == ["log_damage"]
    assert not node.strays()
