"""Rings that are looked at together, compiled and not."""

from collections.abc import Iterator

import pytest

from shmbroker.kernels import native
from shmbroker.shm import rings as rings_module
from shmbroker.shm.rings import Rings
from tests.support.rings import put, ring


@pytest.fixture(params=["compiled", "not compiled"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "not compiled":
        monkeypatch.setattr(rings_module, "native", None)
    elif native is None:
        pytest.skip("there are no compiled kernels here")
    yield


def test_the_readers_that_have_something_are_told_in_their_order() -> None:
    pairs = [ring() for _ in range(5)]
    rings = Rings(reader for _, reader in pairs)
    assert rings.ready() == ()
    for at in (4, 1):
        put(pairs[at][0])
    assert rings.ready() == (1, 4)
    reader = rings.readers[1]
    assert reader.poll() and reader.next() is not None
    reader.release()
    assert rings.ready() == (4,)


def test_what_is_claimed_is_not_there_before_it_is_published() -> None:
    writer, reader = ring()
    rings = Rings([reader])
    writer.claim(1, 8)
    assert rings.ready() == ()
    writer.publish()
    assert rings.ready() == (0,)


def test_none_are_ready_of_none_and_of_those_that_were_emptied() -> None:
    assert Rings([]).ready() == ()
    writer, reader = ring()
    rings = Rings([reader])
    put(writer)
    reader.reset()
    assert rings.ready() == ()


def test_words_that_are_no_memory_are_asked_one_by_one() -> None:
    """As those of tests that stop at each access."""
    _, reader = ring()
    reader.words = list(reader.words)  # type: ignore[assignment]
    rings = Rings([reader])
    assert rings.compiled is None
    assert rings.ready() == ()


@pytest.mark.skipif(native is None, reason="there are no compiled kernels here")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        pytest.param(bytearray(64), "64 bytes are no ring", id="short"),
        pytest.param(memoryview(bytearray(4104))[1:], "not aligned", id="unaligned"),
    ],
)
def test_what_is_no_ring_is_refused(words: bytearray, says: str) -> None:
    assert native is not None
    whole = bytearray(4096)
    with pytest.raises(ValueError, match=says):
        native.rings((whole, words))
    whole.append(0)  # nothing holds on to it


@pytest.mark.skipif(native is None, reason="there are no compiled kernels here")
def test_rings_are_given_in_a_tuple_and_looked_at_in_their_capsule() -> None:
    assert native is not None
    with pytest.raises(TypeError):
        native.rings([bytearray(4096)])
    with pytest.raises(ValueError):
        native.ready(())
