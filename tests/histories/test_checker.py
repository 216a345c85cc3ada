"""The checker finds each anomaly where it is, and none where there is none."""

import copy

import pytest

from tests.histories.checker import History, anomalies

GOOD = History(
    acked=[((1, 0), 0, 0), ((2, 0), 0, 1), ((1, 1), 0, 2), ((2, 1), 1, 0)],
    polls=[[(0, 0, (1, 0)), (1, 0, (2, 1)), (0, 1, (2, 0))], [(0, 2, (1, 1)), (0, 3, (1, 2))]],
    commits=[(1.0, 0, 2), (1.0, 1, 1)],
    starts=[(0.0, 0, 0), (2.0, 0, 2)],
    watermarks=[(0, 1), (1, 1), (0, 4), (0, 4)],
    final={0: {0: (1, 0), 1: (2, 0), 2: (1, 1), 3: (1, 2)}, 1: {0: (2, 1)}},
)


def test_a_good_history_has_none():
    assert anomalies(GOOD) == {}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda h: h.acked.append(((3, 0), 0, 9)), {"lost-write"}),
        (lambda h: h.acked.append(((1, 1), 0, 3)), {"inconsistent-offset"}),
        (lambda h: h.polls.append([(0, 1, (1, 1))]), {"inconsistent-offset"}),
        (lambda h: h.final[1].update({1: (1, 0)}), {"duplicate"}),
        (lambda h: h.final[1].update({1: (2, 0)}), {"duplicate", "reordering"}),
        (lambda h: h.polls.append([(0, 9, (9, 9))]), {"read-lost"}),
        (lambda h: h.failed.append((1, 2)), {"failed-write-read"}),
        (lambda h: h.polls.append([(0, 1, (2, 0)), (0, 0, (1, 0))]), {"nonmonotonic-poll"}),
        (lambda h: h.polls.append([(0, 1, (2, 0)), (0, 1, (2, 0))]), {"nonmonotonic-poll"}),
        (lambda h: h.polls.append([(0, 0, (1, 0)), (0, 2, (1, 1))]), {"poll-skip"}),
        (lambda h: h.starts.append((3.0, 0, 1)), {"commit-lost"}),
        (lambda h: h.watermarks.append((0, 3)), {"watermark-back"}),
        (lambda h: h.polls.pop(), {"unseen"}),
        (lambda h: h.crashes.append("io-worker-1 (pid 7) ended with status 1"), {"crash"}),
    ],
)
def test_each_anomaly_is_found(change, expected):
    history = copy.deepcopy(GOOD)
    change(history)
    assert set(anomalies(history)) == expected
