"""The codecs against other implementations of the same formats, and against bombs."""

import gzip
import os
import zlib

import pytest

from shmbroker.errors import ProtocolFault
from shmbroker.records import codecs
from shmbroker.records.batch_layout import GZIP, LZ4, SNAPPY, ZSTD

PLAIN = b"the quick brown fox " * 5000 + os.urandom(3000)
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("plain", [b"", b"x", PLAIN, bytes(70_000)])
def test_round_trip(codec, plain):
    packed = codecs.compress(codec, plain)
    assert bytes(codecs.decompress(codec, memoryview(packed))) == plain


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_input_is_a_fault(codec):
    packed = codecs.compress(codec, PLAIN)
    for length in [*range(60), len(packed) // 2, len(packed) - 1]:
        with pytest.raises(ProtocolFault):
            plain = codecs.decompress(codec, packed[:length])
            # A cut between two snappy blocks can't be seen here, only by the record count.
            assert codec == SNAPPY and PLAIN.startswith(bytes(plain))
            raise ProtocolFault


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_is_a_fault(codec):
    for number in range(50):
        garbage = bytes([number]) + os.urandom(40)
        try:
            codecs.decompress(codec, garbage)
        except ProtocolFault:
            continue


@pytest.mark.parametrize("codec", CODECS)
def test_bomb_is_a_fault(codec, monkeypatch):
    bomb = codecs.compress(codec, bytes(17 << 20))
    monkeypatch.setattr(codecs, "output_bytes_max", lambda input_bytes: 16 << 20)
    with pytest.raises(ProtocolFault, match="more than"):
        codecs.decompress(codec, bomb)


def test_limit_grows_with_the_input_within_bounds():
    assert codecs.output_bytes_max(0) == 16 << 20
    assert codecs.output_bytes_max(1 << 20) == 100 << 20
    assert codecs.output_bytes_max(1 << 30) == 1 << 30


def test_gzip_members_follow_each_other():
    assert codecs.decompress(GZIP, gzip.compress(b"ab") + gzip.compress(b"cd")) == b"abcd"
    assert codecs.decompress(GZIP, zlib.compress(b"ab", wbits=31)) == b"ab"


def test_raw_snappy_is_read_as_well():
    from cramjam import snappy

    assert codecs.decompress(SNAPPY, bytes(snappy.compress_raw(PLAIN))) == PLAIN


def test_snappy_block_lengths_are_looked_at_before_use():
    packed = bytearray(codecs.compress(SNAPPY, PLAIN))
    for length in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0"):
        packed[16:20] = length
        with pytest.raises(ProtocolFault):
            codecs.decompress(SNAPPY, bytes(packed))
    claims_4_gib = b"\xff\xff\xff\xff\x0f"
    with pytest.raises(ProtocolFault):
        codecs.decompress(SNAPPY, claims_4_gib + b"abc")


def test_zstd_with_and_without_a_stated_size():
    zstandard = pytest.importorskip("zstandard")
    for is_stated in (False, True):
        frame = zstandard.ZstdCompressor(write_content_size=is_stated).compress(bytes(9 << 20))
        assert bytes(codecs.decompress(ZSTD, frame)) == bytes(9 << 20)


def test_unknown_codec_is_a_fault():
    for codec in (-1, 5, 6, 7):
        with pytest.raises(ProtocolFault):
            codecs.decompress(codec, b"")
