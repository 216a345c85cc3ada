"""The four compressions of a record batch, in the framings that Kafka's clients write.

gzip is one or more gzip members; snappy is the xerial stream of the Java client (a header, then
blocks of a length and raw snappy) or one raw block; lz4 and zstd are their standard frames.

Rules
 * Output is bounded before it is made: at most `output_bytes_max(len(input))`, so that a small
   batch can't take the memory of the process. What would be larger raises
   DecompressedTooLargeFault.
 * Time is bounded by the bytes that go in and come out: gzip members and xerial blocks, which cost
   some microseconds each however small they are, are PIECES_MAX at most.
 * Bad input raises ProtocolFault and nothing else.
 * The libraries are imported when first used: a broker passes batches on as they are and often
   never needs one.
"""

import zlib
from collections.abc import Callable
from struct import Struct

from shmbroker.errors import ProtocolFault
from shmbroker.records.batch_layout import GZIP, LZ4, NONE, SNAPPY, ZSTD

NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
"""Kafka's names (`compression.type`), by id."""

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024
_INT32 = Struct(">i")
_GZIP_WBITS = 31
_GZIP_STEP_BYTES = 16 * 1024

PIECES_MAX = 10_000
"""Clients write one gzip member, and xerial blocks of 32 KiB: 10,000 of them hold 320 MB."""


AT_ONCE_BYTES_MAX = 64 << 20
"""What a reader of whole batches unpacks at once. What is larger it takes in parts, so that it
needs no more memory for it; but snappy's, which are a small multiple of what lies in the log."""


class DecompressedTooLargeFault(ProtocolFault):
    """Raised where data would decompress to more bytes than are allowed."""


def output_bytes_max(input_bytes: int) -> int:
    """The most that input of this size may decompress to: 100 times it, 16 MiB to 1 GiB."""
    return min(max(100 * input_bytes, 16 << 20), 1 << 30)


def decompress(
    codec: int, data: bytes | memoryview, bytes_max: int = 1 << 30
) -> bytes | memoryview:
    """The plain bytes of `data`; ProtocolFault if it is corrupt, DecompressedTooLargeFault if they
    would be more than `output_bytes_max` or `bytes_max`."""
    if codec == NONE:
        return data
    if not 0 < codec <= ZSTD:
        raise ProtocolFault(f"unknown compression id {codec}")
    return _DECOMPRESS[codec](data, min(output_bytes_max(len(data)), bytes_max))


def decompress_at_once(codec: int, data: bytes | memoryview) -> bytes | memoryview:
    """`decompress`, for readers who take what is too large for it in parts."""
    return decompress(codec, data, 1 << 30 if codec == SNAPPY else AT_ONCE_BYTES_MAX)


def compress(codec: int, data: bytes) -> bytes:
    """`data` compressed at the library's default level."""
    if codec == NONE:
        return data
    return _COMPRESS[codec](data)


def _too_large(name: str, limit: int) -> DecompressedTooLargeFault:
    return DecompressedTooLargeFault(f"{name} records decompress to more than {limit} bytes")


def _gzip_decompress(data: bytes | memoryview, limit: int) -> bytes:
    """Mostly there is one member, which is given all there is. What follows it is given a step at a
    time: zlib copies what it was given and has no use for, for each member."""
    parts: list[bytes] = []
    left = limit
    members = position = 0
    step = end = len(data)
    while position < end or not members:
        if members == PIECES_MAX:
            raise ProtocolFault(f"gzip records have more than {PIECES_MAX} members")
        member = zlib.decompressobj(_GZIP_WBITS)
        while not member.eof:
            if position == end:
                raise ProtocolFault("gzip records end too early")
            piece = data[position : position + step]
            try:
                parts.append(member.decompress(piece, left + 1))
            except zlib.error as error:
                raise ProtocolFault(f"gzip records: {error}") from None
            left -= len(parts[-1])
            if left < 0:
                raise _too_large("gzip", limit)
            position += len(piece) - len(member.unused_data)
        members += 1
        step = _GZIP_STEP_BYTES
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _gzip_compress(data: bytes) -> bytes:
    return zlib.compress(data, wbits=_GZIP_WBITS)


def _snappy_block(block: bytes | memoryview, left: int, limit: int) -> bytes:
    from cramjam import DecompressionError, snappy

    try:
        # The block opens with its plain length: look before anything is allocated from it.
        if snappy.decompress_raw_len(block) > left:
            raise _too_large("snappy", limit)
        return bytes(snappy.decompress_raw(block))
    except DecompressionError as error:
        raise ProtocolFault(f"snappy records: {error}") from None


def _snappy_decompress(data: bytes | memoryview, limit: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(data, limit, limit)
    parts: list[bytes] = []
    left = limit
    position, end = len(_XERIAL_HEADER), len(data)
    while position < end:
        if len(parts) == PIECES_MAX:
            raise ProtocolFault(f"snappy records have more than {PIECES_MAX} blocks")
        if end - position < 4:
            raise ProtocolFault("snappy records end too early")
        (length,) = _INT32.unpack_from(data, position)
        position += 4
        if not 0 < length <= end - position:
            raise ProtocolFault("snappy block length is beyond the batch")
        parts.append(_snappy_block(data[position : position + length], left, limit))
        left -= len(parts[-1])
        position += length
    return b"".join(parts)


def _snappy_compress(data: bytes) -> bytes:
    from cramjam import snappy

    parts = [_XERIAL_HEADER]
    for start in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(snappy.compress_raw(data[start : start + _XERIAL_BLOCK_BYTES]))
        parts += (_INT32.pack(len(block)), block)
    return b"".join(parts)


def _lz4_decompress(data: bytes | memoryview, limit: int) -> bytes:
    from lz4.frame import LZ4FrameDecompressor

    frame = LZ4FrameDecompressor()
    plain: bytes
    try:
        plain = frame.decompress(data, max_length=limit + 1)
    except RuntimeError as error:
        raise ProtocolFault(f"lz4 records: {error}") from None
    if len(plain) > limit:
        raise _too_large("lz4", limit)
    if not frame.eof:
        raise ProtocolFault("lz4 records end too early")
    return plain


def _lz4_compress(data: bytes) -> bytes:
    from lz4.frame import BLOCKSIZE_MAX64KB, compress

    frame: bytes = compress(data, block_size=BLOCKSIZE_MAX64KB, block_linked=False)
    return frame


def _zstd_decompress(data: bytes | memoryview, limit: int) -> memoryview:
    from cramjam import DecompressionError, zstd

    # Java's frames don't tell their plain size, so the buffer grows until it holds it.
    size = min(max(8 * len(data), 64 << 10), limit)
    while True:
        plain = bytearray(size)
        try:
            written = zstd.decompress_into(data, plain)
        except DecompressionError as error:
            reason = str(error)
            if "whole buffer" not in reason and "too small" not in reason:
                raise ProtocolFault(f"zstd records: {reason}") from None
            if size == limit:
                raise _too_large("zstd", limit) from None
            size = min(4 * size, limit)
        else:
            return memoryview(plain)[:written]


def _zstd_compress(data: bytes) -> bytes:
    from cramjam import zstd

    return bytes(zstd.compress(data, level=3))


_DECOMPRESS: dict[int, Callable[[bytes | memoryview, int], bytes | memoryview]] = {
    GZIP: _gzip_decompress,
    SNAPPY: _snappy_decompress,
    LZ4: _lz4_decompress,
    ZSTD: _zstd_decompress,
}
_COMPRESS = {
    GZIP: _gzip_compress,
    SNAPPY: _snappy_compress,
    LZ4: _lz4_compress,
    ZSTD: _zstd_compress,
}
