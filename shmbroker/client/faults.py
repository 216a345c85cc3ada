"""Faults of clients, beside those of `shmbroker.errors`.

A fault says what is wrong. What its reader can do about it may depend on how the client is used:
then the fault has an advice, in words that fit everywhere. A user of the client that has better
ones puts them in (`told_in`).
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

from shmbroker.errors import Fault, StorageFault
from shmbroker.wire import error_codes

ACCEPT_LOSS = " (reading can be told to go on without them)"
RUN_AS_OWNER = (
    ": run this as the broker's user, or start the broker with shmbroker.data.access=group"
)
NAME_DIRECTORY = "; where its data directory is seen under another name here, give that name"
GIVE_DIRECTORY = "; give it"
CAN_FETCH = ": they can be fetched"
"""Advice: what goes on after a fault's text."""


class Advised(Fault):
    """A fault with an advice, or none."""

    def __init__(self, text: str, advice: str = "") -> None:
        super().__init__(text, advice)
        self.text = text
        self.advice = advice

    def __str__(self) -> str:
        return self.text + self.advice

    def in_words(self, words: Mapping[str, str]) -> Self:
        """The fault with another text for its advice, where `words` has one."""
        told = type(self)(self.text, words.get(self.advice, self.advice))
        return told.with_traceback(self.__traceback__)


@contextmanager
def told_in(words: Mapping[str, str]) -> Iterator[None]:
    """Advised faults leave in these words."""
    try:
        yield
    except Advised as fault:
        if fault.advice not in words:
            raise
        raise fault.in_words(words) from fault.__cause__


class ClusterFault(Advised):
    """The cluster can't be asked, or refuses; the message says who, and what to do."""


class LaterFault(ClusterFault):
    """What may work when tried again."""


class RefusedFault(ClusterFault):
    """A broker answered with an error."""


class DeniedFault(RefusedFault):
    """A broker tells or does it for others only: who asks has no right to it."""


class AuthenticationFault(RefusedFault):
    """A broker does not believe who the client is, or the other way round: nothing was asked."""


class RefusedNowFault(RefusedFault, LaterFault):
    """A broker answered with an error that may pass."""


class FencedFault(ClusterFault):
    """Somebody with a later epoch of the same producer id has written, or has been given it."""


class TransactionFault(ClusterFault):
    """A transaction can't be committed: abort it. The producer can begin the next one."""


class NoFilesFault(ClusterFault):
    """The broker's log files can't be opened from here; its records can still be fetched."""


class DataLossFault(Advised, StorageFault):
    """Records that must be read are gone; the message names the exact range."""


class NoBrokerFault(ConnectionError):
    """None of the bootstrap servers, nor of the brokers that they have named, answers."""

    def __init__(self, bootstrap: str, reason: Exception | None) -> None:
        self.text = f"No broker at {bootstrap} answered"
        self.reason = reason
        super().__init__(f"{self.text}: {reason}")


_DENIED = (
    error_codes.TOPIC_AUTHORIZATION_FAILED,
    error_codes.GROUP_AUTHORIZATION_FAILED,
    error_codes.CLUSTER_AUTHORIZATION_FAILED,
    error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    error_codes.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
)


def refuse(error: int, what: str, message: str | None = None) -> None:
    """Raise for a wire error: RefusedNowFault if it may pass, DeniedFault for want of a right, else
    RefusedFault.

    `message`: what the broker says of it, if it does.
    """
    if error:
        known = f"{error_codes.name_of(error)} ({error_codes.message_of(error)})"
        kind = RefusedNowFault if error_codes.is_retriable(error) else RefusedFault
        if error in _DENIED:
            kind = DeniedFault
        raise kind(f"{what}: {message or known}")


class DeliveryFault(Fault):
    """Records could not be delivered; the producer is at its end.

    `topic`, `partition`, `error`: where and why (Kafka's name of the error). `delivered` and
    `not_delivered` count all records that were handed over; `by_partition` has both for each
    (topic, partition). Of those not delivered, `unknown` were sent without an answer that says
    what became of them: they may be in the log.
    """

    def __init__(
        self,
        text: str,
        topic: str,
        partition: int,
        error: str,
        by_partition: dict[tuple[str, int], tuple[int, int]],
        unknown: int,
        advice: str = "",
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.error = error
        self.by_partition = by_partition
        self.delivered = sum(delivered for delivered, _ in by_partition.values())
        self.not_delivered = sum(not_delivered for _, not_delivered in by_partition.values())
        self.unknown = unknown
        super().__init__(
            f"{topic}-{partition}: {error}: {text}; {self.delivered} records are delivered,"
            f" {self.not_delivered} are not"
            + (f" ({unknown} of them may be: their answer did not come)" if unknown else "")
            + advice
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickled as Spark and multiprocessing do: by its parts."""
        return _remade, (self.args[0], self.__dict__)


def _remade(text: str, parts: dict[str, object]) -> DeliveryFault:
    fault = DeliveryFault.__new__(DeliveryFault, text)
    fault.__dict__.update(parts)
    return fault
