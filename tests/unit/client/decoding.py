"""Decoding with each engine, and any log for it."""

from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from shmbroker.client.reader import decode as module
from shmbroker.client.reader import decode_native, decode_numpy
from shmbroker.client.reader.decode import COLUMNS, decode
from shmbroker.kernels import native
from shmbroker.records.batch_layout import CONTROL_BIT, TIMESTAMP_TYPE_BIT
from tests.support.record_batches import batch

ALL = tuple(COLUMNS)
EVER = 1 << 62


def decoded(data: bytes, start: int = 0, end: int = EVER, columns: tuple[str, ...] = ALL) -> list:
    return list(decode(memoryview(data), start, end, columns, "a topic", 7))


ENGINES = {"native": decode_native, "numpy": decode_numpy}


@pytest.fixture(
    scope="module",
    autouse=True,
    params=[
        pytest.param(
            "native", marks=pytest.mark.skipif(native is None, reason="the kernels are not built")
        ),
        "numpy",
    ],
)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs with both engines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "engine", ENGINES[request.param])
        yield request.param


def uniform(count: int, base_offset: int = 0, size: int = 20, **more) -> bytes:
    rows = [(i, 1000, b"key", b"v" * size, []) for i in range(count)]
    return batch(base_offset, rows, **more)


texts = st.text("aé", max_size=4).map(str.encode)
content = st.one_of(st.none(), st.binary(max_size=90), st.sampled_from([b"", b"x" * 63, b"y" * 64]))
row = st.tuples(
    st.sampled_from([1, 1, 1, 2, 70]),  # step to the next offset
    st.one_of(st.integers(-1, 3), st.integers(-(2**40), 2**40)),
    content,
    content,
    st.one_of(st.just([]), st.lists(st.tuples(texts, content), max_size=3)),
)


@st.composite
def logs(draw: st.DrawFn, kinds: tuple[int, ...] = (0, 1, 2, 3, 4)) -> bytes:
    """Batches of every kind behind each other: gaps, compression, control, append time."""
    out = []
    offset = draw(st.integers(0, 100))
    for _ in range(draw(st.integers(1, 6))):
        if draw(st.booleans()):
            count = draw(st.sampled_from([1, 2, 63, 64, 65, 130]))
            rows = [(i, 50, b"k", b"v" * 30, []) for i in range(count)]
        else:
            rows, delta = [], 0
            for step, timestamp, key, value, headers in draw(st.lists(row, min_size=1, max_size=8)):
                rows.append((delta, timestamp, key, value, headers))
                delta += step
        last_delta = rows[-1][0] + draw(st.sampled_from([0, 0, 3]))
        attributes = draw(st.sampled_from([0, 0, 0, CONTROL_BIT, TIMESTAMP_TYPE_BIT]))
        codec = 0 if attributes & CONTROL_BIT else draw(st.sampled_from(kinds))
        out.append(batch(offset, rows, codec=codec, attributes=attributes, last_delta=last_delta))
        offset += last_delta + 1 + draw(st.sampled_from([0, 0, 5]))
    return b"".join(out)
