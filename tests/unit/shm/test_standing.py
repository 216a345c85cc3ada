"""The table of standing answers: what the network workers see of a grant."""

from shmbroker.shm.standing import USED_NS, StandingAnswers, table_bytes
from shmbroker.shm.words import words_of
from tests.support.family_memory import VirtualClock


def table(entries=3, incarnation=1, memory=None, now_ns=lambda: 1):
    memory = memory if memory is not None else bytearray(table_bytes(entries))
    answers = StandingAnswers(memoryview(memory), incarnation, now_ns)
    return answers, words_of(memoryview(memory)), memory


def test_grant_shows_its_value_until_it_is_withdrawn():
    answers, words, _ = table()
    word, value = answers.grant()
    assert words[word] == value == answers.value(word) != 0
    answers.withdraw(word)
    assert words[word] == 0


def test_no_value_is_given_twice():
    answers, _words, memory = table(entries=1)
    values = set()
    for _ in range(5):
        word, value = answers.grant()
        values.add(value)
        answers.withdraw(word)
    successor, _, _ = table(incarnation=2, memory=memory)
    values.add(successor.grant()[1])
    assert len(values) == 6


def test_full_table_grants_nothing():
    answers, _, _ = table(entries=2)
    first, second = answers.grant(), answers.grant()
    assert first[0] != second[0]
    assert answers.grant() is None
    answers.withdraw(first[0])
    assert answers.grant()[0] == first[0]


def test_successor_clears_what_its_predecessor_granted():
    answers, words, memory = table()
    word, value = answers.grant()
    table(incarnation=2, memory=memory)
    assert words[word] == 0 != value


def test_idle_time_counts_from_the_grant_or_its_last_use():
    clock = VirtualClock()
    answers, words, _ = table(now_ns=clock.monotonic_ns)
    word, _ = answers.grant()
    assert answers.idle_ms(word) == 0
    clock.now += 5
    assert answers.idle_ms(word) == 5000
    words[word + USED_NS] = clock.monotonic_ns() - 2_000_000_000
    assert answers.idle_ms(word) == 2000
    words[word + USED_NS] = clock.monotonic_ns() + 2_000_000_000
    assert answers.idle_ms(word) == 0
