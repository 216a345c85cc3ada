"""Producer state against a list of all batches ever appended."""

from hypothesis import given
from hypothesis import strategies as st

from shmbroker.log.producer_state import ProducerState
from shmbroker.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    NONE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
)

attempts = st.lists(
    st.tuples(
        st.integers(0, 1),  # producer
        st.integers(0, 2),  # epoch
        st.integers(-8, 8),  # distance from the sequence that is due
        st.integers(0, 3),  # last offset delta
    ),
    max_size=40,
)


@given(attempts, st.sampled_from([0, 2**31 - 4]))
def test_state_answers_as_the_whole_history_does(attempts, first_sequence):
    state = ProducerState()
    history = {}
    offset = 0
    for producer_id, epoch, distance, delta in attempts:
        batches = history.setdefault(producer_id, [])
        due = (batches[-1][1] + batches[-1][2] + 1) % 2**31 if batches else first_sequence
        sequence = (due + distance) % 2**31
        answer = state.check(producer_id, epoch, sequence, delta)
        newest = batches[-1][0] if batches else None
        kept = [batch for batch in batches if batch[0] == newest][-5:]
        same = [b for b in kept if b[1:3] == (sequence, delta)]
        if newest is None:
            expected = (NONE, -1, -1)
        elif epoch < newest:
            expected = (INVALID_PRODUCER_EPOCH, -1, -1)
        elif epoch > newest:
            is_first = sequence == 0
            expected = (NONE if is_first else OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1)
        elif same:
            expected = (NONE, same[0][3], same[0][4])
        else:
            expected = (NONE if sequence == due else OUT_OF_ORDER_SEQUENCE_NUMBER, -1, -1)
        assert answer == expected
        if answer == (NONE, -1, -1):
            state.update(producer_id, epoch, sequence, delta, offset, offset + 7)
            batches.append((epoch, sequence, delta, offset, offset + 7))
            offset += delta + 1
