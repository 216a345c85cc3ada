"""What the controller's tests share besides fixtures."""

from collections.abc import Callable
from typing import Any

from shmbroker import clock
from shmbroker.apis.controller.tell_log_ends import HAS
from shmbroker.controller.active_controller import ActiveController
from shmbroker.controller.bootstrap import write_bootstrap_checkpoint
from shmbroker.controller.raft.voter import Voter
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.image import PartitionImage
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.settings.broker_config import BrokerConfig

NOW_MS = 1_700_000_000_000
DIRECTORY_ID = bytes(range(16))
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"

Start = Callable[..., ActiveController]


def open_controller(
    directory: str, cluster_id: str, config: BrokerConfig, now_ms: int
) -> ActiveController:
    """The only controller, of node 1: the metadata in its directory is recovered, or made."""
    write_bootstrap_checkpoint(directory, now_ms)
    voter = Voter.open(directory, 1, clock=clock)
    voter.start()
    follower = MetadataFollower(MetadataLogReader(voter.directory), cluster_id)
    return ActiveController.activate(voter, follower, config, now_ms)


def join(
    controller: ActiveController,
    broker_id: int,
    *,
    is_clean: bool = True,
    pending: frozenset[int] = frozenset(),
    directory_id: bytes = DIRECTORY_ID,
    ends: tuple[int, int] = (0, 10),
) -> int:
    """Register a broker and let it work; its broker epoch. One that isn't clean tells that all its
    replicas end at `ends`, and works when all have told who are `pending`."""
    epoch = controller.membership.register_broker(
        broker_id,
        "127.0.0.1",
        9091 + broker_id,
        bytes([broker_id]) * 16,
        [directory_id],
        NOW_MS,
        is_clean,
        pending,
    )
    if is_clean:
        controller.membership.unfence_broker(broker_id, NOW_MS, pending)
    else:
        tell_ends(controller, broker_id, ends)
    controller.membership.settle(NOW_MS, pending)
    return epoch


def tell_ends(controller: ActiveController, broker_id: int, ends: tuple[int, int]) -> None:
    """TellLogEnds of a broker in doubt: all its replicas end there."""
    topics = [
        {
            "topic_id": topic.topic_id,
            "partitions": [
                log_end(partition.partition, HAS, ends)
                for partition in topic.partitions
                if broker_id in partition.replicas
            ],
        }
        for topic in controller.image.topics_by_id.values()
    ]
    tell(controller, broker_id, topics, is_last=True)


def log_end(
    index: int, state: int, ends: tuple[int, int], leader_epoch: int = -1
) -> dict[str, Any]:
    """A partition of TellLogEnds."""
    return {
        "partition_index": index,
        "state": state,
        "leader_epoch": leader_epoch,
        "last_epoch": ends[0],
        "end_offset": ends[1],
        "epochs": [],
    }


def tell(
    controller: ActiveController, broker_id: int, topics: list[dict[str, Any]], *, is_last: bool
) -> dict[str, Any]:
    """TellLogEnds, and its answer."""
    request = {
        "broker_id": broker_id,
        "broker_epoch": controller.image.brokers[broker_id].broker_epoch,
        "is_last": is_last,
        "topics": topics,
    }
    answer = controller.told_ends.take(request, NOW_MS)
    assert answer["error_code"] == 0
    return answer


def tell_of(
    controller: ActiveController,
    broker_id: int,
    name: str,
    state: int,
    ends: tuple[int, int] = (0, 0),
) -> tuple[int, int]:
    """TellLogEnds of one partition, of what its broker has found; (leader, epoch) of the answer."""
    topic = controller.image.topics_by_name[name]
    row = log_end(0, state, ends, topic.partitions[0].leader_epoch)
    topics = [{"topic_id": topic.topic_id, "partitions": [row]}]
    answer = tell(controller, broker_id, topics, is_last=False)
    (found,) = answer["topics"][0]["partitions"]
    return found["leader_id"], found["leader_epoch"]


def topic(name: str, partitions: int) -> dict:
    """A row of CreateTopics, of a topic that is as the settings say."""
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": -1,
        "assignments": [],
        "configs": [],
    }


def create(controller: ActiveController, *topics: dict) -> None:
    """CreateTopics, which succeeds."""
    request = {"topics": list(topics), "validate_only": False}
    results = controller.handle("CreateTopics", 7, request, NOW_MS)["topics"]
    assert [row["error_code"] for row in results] == [0] * len(topics)


def at(controller: ActiveController, name: str, index: int = 0) -> PartitionImage:
    """A partition as it is."""
    return controller.image.topics_by_name[name].partitions[index]


def alter(controller: ActiveController, name: str, isr: list[int], **changes: int) -> dict:
    """AlterPartition v3 as the leader of a partition would send it, but for `changes`."""
    partitions = controller.image.topics_by_name[name].partitions
    index = changes.get("partition_index", 0)
    partition = partitions[min(index, len(partitions) - 1)]
    brokers = controller.image.brokers
    broker_id = changes.get("broker_id", partition.leader_id)
    epochs = [
        {"broker_id": i, "broker_epoch": changes.get(f"epoch_{i}", brokers[i].broker_epoch)}
        for i in isr
        if i in brokers
    ]
    epochs += [{"broker_id": i, "broker_epoch": 1} for i in isr if i not in brokers]
    wanted = {
        "partition_index": index,
        "leader_epoch": partition.leader_epoch + changes.get("leader_epoch", 0),
        "partition_epoch": partition.partition_epoch + changes.get("partition_epoch", 0),
        "leader_recovery_state": changes.get("recovery", 0),
        "new_isr_with_epochs": epochs,
    }
    topic_id = controller.image.topics_by_name[name].topic_id
    request = {
        "broker_id": broker_id,
        "broker_epoch": changes.get("broker_epoch", brokers[broker_id].broker_epoch),
        "topics": [{"topic_id": topic_id, "partitions": [wanted]}],
    }
    answer = controller.handle("AlterPartition", 3, request, NOW_MS)
    if answer["error_code"]:
        return answer
    return answer["topics"][0]["partitions"][0]
