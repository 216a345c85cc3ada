"""What the controller's tests share besides fixtures."""

from collections.abc import Callable

from shmbroker.controller.active_controller import ActiveController
from shmbroker.metadata.image import PartitionImage

NOW_MS = 1_700_000_000_000
DIRECTORY_ID = bytes(range(16))
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"

Start = Callable[..., ActiveController]


def join(
    controller: ActiveController,
    broker_id: int,
    *,
    is_clean: bool = True,
    pending: frozenset[int] = frozenset(),
) -> int:
    """Register a broker and let it work; its broker epoch."""
    epoch = controller.register_broker(
        broker_id,
        "127.0.0.1",
        9091 + broker_id,
        bytes([broker_id]) * 16,
        [DIRECTORY_ID],
        NOW_MS,
        is_clean,
    )
    controller.unfence_broker(broker_id, NOW_MS, pending)
    return epoch


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
