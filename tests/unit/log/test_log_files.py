"""The small files of a log directory: names, checkpoints, epochs, metadata, properties, config."""

import os

import pytest

from shmbroker.errors import ConfigFault, CorruptFault, StorageFault
from shmbroker.log import checkpoints, file_names
from shmbroker.log.checkpoints import read_offsets, write_offsets
from shmbroker.log.config import LogConfig
from shmbroker.log.leader_epochs import LeaderEpochs
from shmbroker.log.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from shmbroker.log.partition_metadata import read_partition_metadata, write_partition_metadata
from shmbroker.settings.table import TOPIC_SETTINGS

# --- names ---


def test_file_names_have_twenty_digits():
    assert file_names.file_name(1234, file_names.LOG) == "00000000000000001234.log"
    assert file_names.offset_of("00000000000000001234.log", ".log") == 1234


@pytest.mark.parametrize(
    "name",
    [
        "00000000000000001234.index",
        "0000000000000001234.log",
        "000000000000000001234.log",
        "0000000000000000123a.log",
        "٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.log",
        "99999999999999999999.log",
        "leader-epoch-checkpoint",
        "00000000000000001234.log.deleted",
    ],
)
def test_other_files_are_no_segments(name):
    assert file_names.offset_of(name, ".log") is None


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("flights-0", ("flights", 0)),
        ("a-b-12", ("a-b", 12)),
        ("__consumer_offsets-49", ("__consumer_offsets", 49)),
        ("flights", None),
        ("flights-", None),
        ("flights-01", None),
        ("flights-2147483648", None),
        ("flights--1", ("flights-", 1)),
        ("fl ights-1", None),
        ("flights-0.0123456789abcdef0123456789abcdef-delete", None),
    ],
)
def test_partition_directories_are_told_apart(name, parsed):
    assert file_names.parse_partition_directory(name) == parsed


def test_marked_directories_fit_a_file_system():
    name = file_names.marked_directory("t" * 249, 3, file_names.DELETE, "ab" * 16)
    assert len(name) == 255
    assert file_names.mark_of(name) == "delete"
    assert file_names.mark_of("a-1." + "0" * 32 + "-stray") == "stray"
    assert file_names.mark_of("a-delete") is None


# --- checkpoints ---


def test_offsets_round_trip(tmp_path):
    path = str(tmp_path / "recovery-point-offset-checkpoint")
    assert read_offsets(path) == {}
    offsets = {("a", 0): 5, ("b-c", 11): 2**62}
    write_offsets(path, offsets)
    assert read_offsets(path) == offsets
    with open(path) as file:
        assert file.read() == f"0\n2\na 0 5\nb-c 11 {2**62}\n"
    write_offsets(path, {})
    assert read_offsets(path) == {}
    assert os.listdir(tmp_path) == ["recovery-point-offset-checkpoint"]


@pytest.mark.parametrize(
    "text",
    [
        "1\n0\n",
        "0",
        "0\n",
        "0\n2\na 0 5\n",
        "0\n1\na 0 5\nb 0 5\n",
        "0\n1\na 0\n",
        "0\n1\na 0 5 6\n",
        "0\n1\na x 5\n",
        "0\n1\na 0 -5\n",
        "0\n1\na 0 9223372036854775808\n",
        "0\n1\na 2147483648 1\n",
        "0\n1\na 0 ٥\n",
        "0\n2\na 0 5\na 0 6\n",
        "0\n-1\n",
        "0\n1\na 0 5\n\n",
    ],
)
def test_damaged_offsets_are_a_fault(tmp_path, text):
    path = tmp_path / "checkpoint"
    path.write_text(text)
    with pytest.raises(CorruptFault):
        read_offsets(str(path))


def test_bytes_that_are_no_text_are_a_fault(tmp_path):
    path = tmp_path / "checkpoint"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CorruptFault):
        read_offsets(str(path))


def test_refused_write_is_a_fault_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = str(tmp_path / "checkpoint")
    write_offsets(path, {("a", 0): 1})

    def refuse(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(checkpoints.os, "fsync", refuse)
    with pytest.raises(StorageFault):
        write_offsets(path, {("a", 0): 2})
    assert read_offsets(path) == {("a", 0): 1}


# --- leader epochs ---


@pytest.fixture
def epochs(tmp_path):
    history = LeaderEpochs(str(tmp_path / "leader-epoch-checkpoint"))
    for epoch, start in [(1, 0), (3, 100), (6, 250)]:
        assert history.assign(epoch, start)
    return history


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),
        (0, (0, 0)),
        (1, (1, 100)),
        (2, (1, 100)),
        (3, (3, 250)),
        (5, (3, 250)),
        (6, (6, 400)),
        (7, (-1, -1)),
    ],
)
def test_end_offset_for_epoch(epochs, asked, answer):
    assert epochs.end_offset_for(asked, 400) == answer


def test_without_history_every_epoch_is_unknown(tmp_path):
    assert LeaderEpochs(str(tmp_path / "x")).end_offset_for(0, 5) == (-1, -1)


@pytest.mark.parametrize(
    ("epoch", "start", "changed", "entries"),
    [
        (6, 300, False, [(1, 0), (3, 100), (6, 250)]),
        (-1, 300, False, [(1, 0), (3, 100), (6, 250)]),
        (7, 300, True, [(1, 0), (3, 100), (6, 250), (7, 300)]),
        (7, 250, True, [(1, 0), (3, 100), (7, 250)]),
        (7, 50, True, [(1, 0), (7, 50)]),
        (6, 200, True, [(1, 0), (3, 100), (6, 200)]),
        (4, 300, True, [(1, 0), (3, 100), (4, 300)]),
    ],
)
def test_assign_drops_what_contradicts(epochs, epoch, start, changed, entries):
    assert epochs.assign(epoch, start) is changed
    assert epochs.entries == entries


def test_epochs_truncate_at_both_ends(epochs):
    epochs.truncate_from_end(251)
    assert epochs.latest == 6
    epochs.truncate_from_end(250)
    assert epochs.entries == [(1, 0), (3, 100)]
    epochs.truncate_from_start(0)
    assert epochs.entries == [(1, 0), (3, 100)]
    epochs.truncate_from_start(100)
    assert epochs.entries == [(3, 100)]
    epochs.truncate_from_start(120)
    assert epochs.entries == [(3, 120)]
    assert [epochs.epoch_at(offset) for offset in (119, 120, 999)] == [-1, 3, 3]


def test_epochs_are_written_when_they_changed(epochs, tmp_path):
    path = tmp_path / "leader-epoch-checkpoint"
    for change, *arguments in [
        (epochs.assign, 9, 300),
        (epochs.truncate_from_end, 300),
        (epochs.truncate_from_start, 10),
    ]:
        change(*arguments)
        assert not epochs.is_written
        epochs.write()
        assert epochs.is_written
        path.unlink()
        epochs.write()
        assert not path.exists()


def test_epochs_survive_in_their_file(epochs, tmp_path):
    epochs.write()
    assert (tmp_path / "leader-epoch-checkpoint").read_text() == "0\n3\n1 0\n3 100\n6 250\n"
    again = LeaderEpochs(epochs.path)
    again.load()
    assert again.entries == epochs.entries


@pytest.mark.parametrize("lines", ["1 0\n1 5", "3 0\n2 5", "1 9\n2 8", "1 0\nx 1"])
def test_epochs_that_do_not_grow_are_a_fault(tmp_path, lines):
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text(f"0\n2\n{lines}\n")
    with pytest.raises(CorruptFault):
        LeaderEpochs(str(path)).load()


# --- partition.metadata, meta.properties ---


def test_partition_metadata_round_trips(tmp_path):
    path = str(tmp_path / "partition.metadata")
    assert read_partition_metadata(path) is None
    write_partition_metadata(path, bytes(range(16)))
    assert read_partition_metadata(path) == bytes(range(16))
    with open(path) as file:
        assert file.read() == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"


@pytest.mark.parametrize(
    "text",
    ["version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw", "version: 0", "version: 0\ntopic_id: x"],
)
def test_damaged_partition_metadata_is_a_fault(tmp_path, text):
    path = tmp_path / "partition.metadata"
    path.write_text(text)
    with pytest.raises(CorruptFault):
        read_partition_metadata(str(path))


def test_meta_properties_round_trip(tmp_path):
    path = str(tmp_path / "meta.properties")
    assert read_meta_properties(path) is None
    write_meta_properties(path, MetaProperties(3, "abc", bytes(range(16))))
    found = read_meta_properties(path)
    assert (found.node_id, found.cluster_id, found.directory_id) == (3, "abc", bytes(range(16)))


def test_meta_properties_may_be_written_by_java(tmp_path):
    path = tmp_path / "meta.properties"
    path.write_text(
        "#\n#Tue Nov 24 09:34:26 UTC 2026\ncluster.id=a\\=\\=\\\n  b\n"
        "version: 1\ndirectory.id AAECAwQFBgcICQoLDA0ODw\nnode.id=3\n"
    )
    found = read_meta_properties(str(path))
    assert (found.node_id, found.cluster_id, found.directory_id) == (3, "a==b", bytes(range(16)))


@pytest.mark.parametrize(
    ("line", "other"),
    [
        ("version=1", "version=0"),
        ("version=1", ""),
        ("node.id=3", "node.id=x"),
        ("node.id=3", "node.id=-2"),
        ("node.id=3", "node.id=2147483648"),
        ("cluster.id=abc", "cluster.id="),
        ("directory.id=AAECAwQFBgcICQoLDA0ODw", "directory.id=short"),
        ("cluster.id=abc", "cluster.id=\\u12"),
    ],
)
def test_meta_properties_that_cannot_be_used_are_a_fault(tmp_path, line, other):
    path = tmp_path / "meta.properties"
    write_meta_properties(str(path), MetaProperties(3, "abc", bytes(range(16))))
    path.write_text(path.read_text().replace(line, other))
    with pytest.raises(ConfigFault):
        read_meta_properties(str(path))


# --- settings ---


def test_config_has_kafkas_defaults():
    config = LogConfig()
    assert config.segment_bytes == 1 << 30
    assert config.index_interval_bytes == 4096
    assert config.max_message_bytes == 1048588
    assert config.retention_ms == 604_800_000
    assert (config.is_deleted, config.is_compacted) == (True, False)
    assert not config.is_log_append_time


def test_config_takes_texts():
    config = LogConfig(
        {
            "segment.bytes": "100",
            "cleanup.policy": "compact,delete",
            "message.timestamp.type": "LogAppendTime",
            "preallocate": "not the log's",
        }
    )
    assert config.segment_bytes == 100
    assert config.is_deleted
    assert config.is_compacted
    assert config.is_log_append_time


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", "x"),
        ("segment.bytes", "13"),
        ("segment.bytes", "2147483648"),
        ("retention.ms", "-2"),
        ("cleanup.policy", "shred"),
        ("compression.type", "brotli"),
        ("message.timestamp.type", "Now"),
    ],
)
def test_config_that_cannot_be_used_is_a_fault(name, value):
    with pytest.raises(ConfigFault, match=name):
        LogConfig({name: value})


def test_settings_are_those_of_the_table():
    """A default, a type or a bound stands in one place."""
    config = LogConfig()
    for attribute in LogConfig.__annotations__:
        row = TOPIC_SETTINGS[attribute.replace("_", ".")]
        if not attribute.startswith("local_"):
            assert getattr(config, attribute) == row.parse(row.default), attribute
    assert set(LogConfig.__annotations__) <= set(LogConfig.__slots__)
