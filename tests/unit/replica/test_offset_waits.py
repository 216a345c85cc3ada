"""Who waits for a high watermark leaves once, in order, and never too early."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shmbroker.replica.offset_waits import OffsetWaits

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["wait", "wait", "wait", "move", "move", "take", "drop"]),
        st.integers(0, 2),
        st.integers(1, 4),
    ),
    max_size=40,
)


class Place:
    """A partition, as far as one waits for it."""

    def __init__(self) -> None:
        self.high_watermark = self.end = 0


@given(STEPS)
def test_against_a_list(steps: list[tuple[str, int, int]]) -> None:
    waits: OffsetWaits[int] = OffsetWaits()
    places: list[Any] = [Place() for _ in range(3)]
    model: list[tuple[int, int, int]] = []
    """(place, offset, waiter)"""
    for number, (what, at, by) in enumerate(steps):
        place = places[at]
        if what == "wait":
            place.end += by
            waits.wait(place, place.end, number)
            model.append((at, place.end, number))
            continue
        if what == "move":
            place.high_watermark = min(place.end, place.high_watermark + by)
            gone = [row for row in model if row[0] == at and row[1] <= place.high_watermark]
            assert waits.due(place) == [row[2] for row in gone]
        elif what == "take":
            gone = [row for row in model if row[0] == at]
            assert waits.take(place) == [row[2] for row in gone]
        else:
            gone = [row for row in model if row[2] % 4 == by % 4]
            found = waits.drop_where(lambda waiter, by=by: waiter % 4 == by % 4)  # type: ignore[misc]
            assert sorted(found) == [row[2] for row in gone]
        model = [row for row in model if row not in gone]
        assert len(waits) == len(model)
        assert set(map(id, waits.partitions)) == {id(places[row[0]]) for row in model}


def test_nobody_waits_where_nobody_has_waited() -> None:
    waits: OffsetWaits[int] = OffsetWaits()
    nowhere: Any = Place()
    assert waits.due(nowhere) == [] and not len(waits)
