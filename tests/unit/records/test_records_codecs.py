"""The codecs against other implementations of the same formats, and against bombs."""

import gzip
import random
import zlib

import pytest

from shmbroker.errors import ProtocolFault
from shmbroker.records import codecs
from shmbroker.records.batch_layout import GZIP, LZ4, SNAPPY, ZSTD

PLAIN = b"the quick brown fox " * 5000 + random.Random(3).randbytes(3000)
CODECS = [GZIP, SNAPPY, LZ4, ZSTD]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "plain", [b"", b"x", PLAIN, bytes(70_000)], ids=["nothing", "a byte", "text and noise", "zeros"]
)
def test_round_trip(codec, plain):
    packed = codecs.compress(codec, plain)
    assert bytes(codecs.decompress(codec, memoryview(packed))) == plain


@pytest.mark.parametrize("codec", CODECS)
def test_truncated_input_is_a_fault(codec):
    packed = codecs.compress(codec, PLAIN)
    for length in [*range(60), len(packed) // 2, len(packed) - 1]:
        try:
            plain = codecs.decompress(codec, packed[:length])
        except ProtocolFault:
            continue
        # A cut between two snappy blocks can't be seen here, only by the record count.
        assert codec == SNAPPY and PLAIN.startswith(bytes(plain))


@pytest.mark.parametrize("codec", CODECS)
def test_garbage_is_a_fault_and_no_other_exception(codec):
    faults = 0
    rng = random.Random(codec)
    for number in range(50):
        try:
            codecs.decompress(codec, bytes([number]) + rng.randbytes(40))
        except ProtocolFault:
            faults += 1
    assert faults >= 40, "some few bytes are a short text by chance"


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


class CountingZlib:
    """zlib, with what it was given: each member that ends gives a copy of the rest of it back."""

    error = zlib.error

    def __init__(self):
        self.members = 0
        self.bytes_given = 0

    def decompressobj(self, wbits):
        self.members += 1
        member = zlib.decompressobj(wbits)

        class Member:
            eof = property(lambda _: member.eof)
            unused_data = property(lambda _: member.unused_data)

            def decompress(_, data, limit):
                self.bytes_given += len(data)
                return member.decompress(data, limit)

        return Member()


@pytest.mark.parametrize("plain", [b"", b"ab"])
def test_many_gzip_members_are_read_in_time_that_grows_with_them(plain, monkeypatch):
    member = gzip.compress(plain)
    given = []
    for count in (2000, 8000):
        counting = CountingZlib()
        monkeypatch.setattr(codecs, "zlib", counting)
        assert codecs.decompress(GZIP, memoryview(member * count)) == plain * count
        assert counting.members == count
        given.append(counting.bytes_given)
    assert given[1] < 5 * given[0]


def test_gzip_members_and_xerial_blocks_are_few(monkeypatch):
    from cramjam import snappy

    counting = CountingZlib()
    monkeypatch.setattr(codecs, "zlib", counting)
    with pytest.raises(ProtocolFault, match="members"):
        codecs.decompress(GZIP, memoryview(gzip.compress(b"") * 50_000))
    assert counting.members == codecs.PIECES_MAX
    block = bytes(snappy.compress_raw(b""))
    block = len(block).to_bytes(4, "big") + block
    header = codecs.compress(SNAPPY, b"")
    assert codecs.decompress(SNAPPY, header + block * codecs.PIECES_MAX) == b""
    with pytest.raises(ProtocolFault, match="blocks"):
        codecs.decompress(SNAPPY, header + block * (codecs.PIECES_MAX + 1))


def test_gzip_members_behind_the_first_may_be_large(monkeypatch):
    large = random.Random(4).randbytes(300_000)
    packed = gzip.compress(b"ab") + gzip.compress(large) + gzip.compress(b"cd")
    assert codecs.decompress(GZIP, memoryview(packed)) == b"ab" + large + b"cd"
    for cut in (len(packed) - 1, len(packed) - 30, 200_000, 30):
        with pytest.raises(ProtocolFault, match="too early"):
            codecs.decompress(GZIP, packed[:cut])


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
