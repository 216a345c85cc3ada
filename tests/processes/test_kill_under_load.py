"""kill -9 of each kind of process under idempotent acks=all load.

What is acknowledged is there afterwards, once and in order; the other processes live on, and go on
serving what does not need the dead one.
"""

import os
import signal

import pytest

from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now, load_on
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "kills"


def kill(broker: Broker, *titles: str) -> None:
    """kill -9 of these children at once."""
    children = broker.children()
    for title in titles:
        os.kill(children[title], signal.SIGKILL)


def wait_for_successors(broker: Broker, before: dict[str, int], *titles: str) -> None:
    """Until each of these children runs again, with another pid."""

    def are_back() -> bool:
        now = broker.children()
        return all(now.get(title, before[title]) != before[title] for title in titles)

    wait_until(are_back, f"the successors of {titles}")


@pytest.mark.parametrize(
    ("titles", "flags"),
    [
        (["controller-1"], []),
        (["io-worker-1"], []),
        (["network-worker-1"], []),
        (["network-worker-1"], ["--network-workers", "1"]),
        (["io-worker-2"], ["--io-workers", "2"]),
        (["io-worker-1", "network-worker-2"], []),
        (["network-worker-1", "network-worker-2"], []),
        (["controller-1", "io-worker-1"], []),
        (["controller-1", "io-worker-1", "network-worker-1", "network-worker-2"], []),
    ],
    ids=lambda words: "+".join(words) or "-",
)
def test_killed_children_lose_nothing_acknowledged(titles: list[str], flags: list[str]) -> None:
    with Broker(*flags) as broker:
        load = load_on(broker.address, TOPIC)
        for _ in range(3):
            before = broker.children()
            kill(broker, *titles)
            wait_for_successors(broker, before, *titles)
            load.wait_for_more()
            others = {title: pid for title, pid in before.items() if title not in titles}
            assert others.items() <= broker.children().items(), "another process ended too"
        load.finish()
        load.check(broker.address)
        assert broker.stop() == 0


@pytest.mark.parametrize("title", ["controller-1", "io-worker-1", "network-worker-1"])
def test_child_killed_while_it_boots_comes_back(title: str) -> None:
    with Broker() as broker:
        load = load_on(broker.address, TOPIC)
        for _ in range(3):
            before = broker.children()
            kill(broker, title)
            # As soon as there is a process in its place.
            wait_for_successors(broker, before, title)
        load.wait_for_more()
        load.finish()
        load.check(broker.address)


def test_produce_and_fetch_go_on_without_the_controller() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        assert client.produce(TOPIC, batch_now(b"before"))["error_code"] == 0
        # Stopped, not killed: a successor would be there too soon to notice.
        controller = broker.children()["controller-1"]
        os.kill(controller, signal.SIGSTOP)
        try:
            assert client.produce(TOPIC, batch_now(b"meanwhile"))["error_code"] == 0
            assert client.fetch(TOPIC, 0)["high_watermark"] == 2
        finally:
            os.kill(controller, signal.SIGCONT)


def test_connections_survive_the_death_of_an_io_worker() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        before = broker.children()
        kill(broker, "io-worker-1")
        wait_for_successors(broker, before, "io-worker-1")
        codes = set()

        def is_appended() -> bool:
            codes.add(client.produce(TOPIC, batch_now(b"again"))["error_code"])
            return 0 in codes

        wait_until(is_appended, "an append")
        assert codes <= {0, 6}, "only NOT_LEADER_OR_FOLLOWER is retried without a delay"


def test_duplicate_across_an_io_workers_death_gets_its_first_offset() -> None:
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)
        producer_id = client.ask(
            "InitProducerId", 4, {"transactional_id": None, "transaction_timeout_ms": 60_000}
        )["producer_id"]
        batches = [
            batch_now(
                b"%d" % number,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number,
            )
            for number in range(3)
        ]
        for number, batch in enumerate(batches):
            assert client.produce(TOPIC, batch)["base_offset"] == number
        before = broker.children()
        kill(broker, "io-worker-1")
        wait_for_successors(broker, before, "io-worker-1")
        for number, batch in enumerate(batches):
            answer = wait_until(
                lambda batch=batch: (
                    (found := client.produce(TOPIC, batch))["error_code"] != 6 and found
                ),
                "an answer",
            )
            assert (answer["error_code"], answer["base_offset"]) == (0, number)


def test_metadata_always_tells_of_a_broker() -> None:
    """Even while its process is dead: a client that is told of none has nowhere to ask again."""
    with Broker() as broker, RawClient(broker.address) as client:
        client.create_topic(TOPIC)

        def leader() -> int:
            answer = client.ask("Metadata", 12, {"topics": [{"name": TOPIC}]})
            assert [row["node_id"] for row in answer["brokers"]] == [1]
            assert answer["controller_id"] == 1
            return answer["topics"][0]["partitions"][0]["leader_id"]

        leaders = set()
        for _ in range(3):  # the third successor comes after a while
            before = broker.children()
            kill(broker, "io-worker-1")
            while (
                broker.children().get("io-worker-1", before["io-worker-1"])
                == (before["io-worker-1"])
            ):
                leaders.add(leader())
            wait_until(lambda: leader() == 1, "the successor")
        assert leaders >= {-1}, "its death was never seen"
