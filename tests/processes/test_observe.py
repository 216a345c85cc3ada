"""A real family, looked at from outside: what is seen of work, of a death and of the end."""

import os
import signal
from pathlib import Path

from shmbroker.observe.attach import attach, find, running
from shmbroker.observe.snapshot import RUNNING, Snapshot
from shmbroker.testing.broker import Broker
from tests.support.acknowledged_load import batch_now
from tests.support.raw_client import RawClient
from tests.support.waiting import wait_until

TOPIC = "seen"


def test_family_is_seen_from_outside(tmp_path: Path) -> None:
    with Broker("--network-workers", "1", data=tmp_path) as broker:
        pid = find(str(tmp_path))
        assert pid == broker.pid
        assert str(tmp_path) in [each.data_directory for each in running()]
        seen = attach(pid)
        with RawClient(broker.address) as client:
            client.create_topic(TOPIC)
            for _ in range(5):
                assert client.produce(TOPIC, batch_now(b"value"))["error_code"] == 0
            fetched = len(client.fetch(TOPIC, 0)["records"])

            def done() -> Snapshot | None:
                found = seen.observer.look(are_groups_wanted=False)
                topics = {topic.name: topic for topic in found.topics}
                if TOPIC not in topics or topics[TOPIC].partitions[0].read_bytes != fetched:
                    return None
                is_measured = {"Produce", "Fetch"} <= {each.name for each in found.latencies}
                # each process counts once a second
                appended = {
                    one.title: one.counted.get("batches_appended") for one in found.processes
                }
                is_counted = appended["io-worker-1"] == 5
                return found if found.is_ready and is_measured and is_counted else None

            found = wait_until(done, "what was done")
        topic = next(each for each in found.topics if each.name == TOPIC)
        assert topic.records == 5
        assert topic.size_bytes == fetched
        titles = {process.title: process for process in found.processes}
        children = broker.children()
        assert {
            title: process.pid
            for title, process in titles.items()
            if process.pid and title != "supervisor"
        } == children
        assert titles["supervisor"].pid == pid
        assert all(process.state == RUNNING for process in titles.values() if process.pid)
        assert titles["io-worker-1"].counted["batches_appended"] == 5
        assert found.data_directory == str(tmp_path)
        os.kill(children["io-worker-1"], signal.SIGKILL)

        def replaced() -> bool:
            process = seen.observer.look(are_groups_wanted=False).of_role("io-worker")[0]
            return process.restarts == 1 and process.state == RUNNING

        wait_until(replaced, "its successor")
        assert not seen.has_ended()
        assert broker.stop() == 0
        assert seen.has_ended(wait_s=10)
        seen.observer.look(are_groups_wanted=False)  # what is left can still be read
        seen.close()
