"""What a client's faults advise, in the words of Spark's users: its options."""

from collections.abc import Iterator
from contextlib import contextmanager

from shmbroker.client.faults import Advice, Advised

WORDS = {
    Advice.ACCEPT_LOSS: " (set the source option failOnDataLoss to false to go on without them)",
    Advice.RUN_AS_OWNER: ": run Spark as the broker's user",
    Advice.NAME_DIRECTORY: (
        "; where its data directory is seen under another name here, give it as option"
        " shmbroker.data"
    ),
    Advice.FETCH: ": shmbroker.read=auto fetches them",
}


@contextmanager
def in_spark_s_words() -> Iterator[None]:
    """Faults that advise something leave in these words."""
    try:
        yield
    except Advised as fault:
        if fault.advice is Advice.NONE:
            raise
        told = fault.in_words(WORDS).with_traceback(fault.__traceback__)
        raise told from fault.__cause__
