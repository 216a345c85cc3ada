"""Names of objects, and manifests that are whole or refused."""

import pytest

from shmbroker.errors import CorruptFault
from shmbroker.tier.manifest import (
    PartitionName,
    encode_manifest,
    parse_manifest,
    partition_prefix,
    split_key,
    stem_of,
)
from shmbroker.tier.remote_log import RemoteSegment

NAME = PartitionName("flights", bytes(range(16)), 3)
SEGMENT = RemoteSegment(10, 812, 4, 5000, 1_700_000_000_000)
OBJECTS = {"log": (5000, 0x0A1B2C3D), "index": (8, 1)}
KEY = "c/flights.AAECAwQFBgcICQoLDA0ODw/3/" + stem_of(10, 812, 4) + ".manifest"


def test_manifest_says_what_was_copied():
    assert parse_manifest(KEY, encode_manifest(NAME, SEGMENT, OBJECTS), NAME) == (SEGMENT, OBJECTS)


def test_keys_begin_with_cluster_topic_and_partition():
    assert partition_prefix("c", NAME) == "c/flights.AAECAwQFBgcICQoLDA0ODw/3/"
    assert split_key(KEY) == (stem_of(10, 812, 4), "manifest")


@pytest.mark.parametrize(
    "key", ["c/t/0/manifest", KEY + ".tmp", KEY[:-1], "c/t/0/1-2-3.log", KEY.replace("812", "81x")]
)
def test_other_keys_are_none_of_ours(key):
    assert split_key(key) is None


def test_every_flipped_bit_and_every_cut_is_refused():
    data = encode_manifest(NAME, SEGMENT, OBJECTS)
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(CorruptFault):
            parse_manifest(KEY, bytes(damaged), NAME)
        with pytest.raises(CorruptFault):
            parse_manifest(KEY, data[:at], NAME)


@pytest.mark.parametrize(
    ("segment", "name"),
    [
        (SEGMENT, NAME._replace(partition=4)),
        (SEGMENT, NAME._replace(topic_id=bytes(16))),
        (SEGMENT._replace(end_offset=900), NAME),
        (SEGMENT._replace(leader_epoch=5), NAME),
    ],
)
def test_manifest_of_another_segment_is_refused(segment, name):
    with pytest.raises(CorruptFault, match="another segment"):
        parse_manifest(KEY, encode_manifest(name, segment, OBJECTS), NAME)
