"""A coordinator with groups of both protocols, and a topic for them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shmbroker.groups.consumer.group import ConsumerGroup
from shmbroker.metadata.changes import TopicCreated
from shmbroker.metadata.image import MetadataImage, TopicImage
from shmbroker.wire import codec
from tests.unit.groups.coordinator_at_work import Broker
from tests.unit.groups.groups_at_work import Call

TOPIC_ID = b"the topic's id.."
FIELDS = {
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout_ms": -1,
    "subscribed_topic_names": None,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": None,
}


class Office(Broker):
    """With a topic "t" of four partitions, which "tt" is not."""

    topic = TopicImage("t", TOPIC_ID, (None,) * 4)  # type: ignore[arg-type]

    def restart(self, is_patient: bool = True) -> None:
        super().restart(is_patient)
        image = MetadataImage("cluster")
        image.topics_by_name["t"] = image.topics_by_id[self.topic.topic_id] = self.topic
        image.offset = 1
        self.groups.consumers.on_image(image, [TopicCreated(self.topic)])

    def beat(self, member: str, epoch: int, **more: Any) -> dict[str, Any]:
        body = FIELDS | {"group_id": "g", "member_id": member, "member_epoch": epoch} | more
        return self.groups.consumers.heartbeat(body, 1, "client", "/host")

    def enter(self, member: str, **more: Any) -> dict[str, Any]:
        body = {"rebalance_timeout_ms": 60_000, "topic_partitions": []}
        return self.beat(member, 0, **(body | {"subscribed_topic_names": ["t"]} | more))

    def sync(
        self,
        member: str,
        group: str = "g",
        generation: int = 1,
        assignments: list[dict[str, Any]] | None = None,
    ) -> Call:
        """With an assignment that consumers understand: of nothing."""
        return super().sync(member, group, generation, assignments or [])

    @property
    def group(self) -> Any:
        return self.groups.groups["g"]

    def types(self) -> list[str]:
        return [each.group_type for each in self.groups.list_groups(set(), set())[1]]


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    made = Office(tmp_path)
    yield made
    for partition in made.partitions:
        partition.log.close(clean=False)


def owned(*partitions: int) -> list[dict[str, Any]]:
    return [{"topic_id": TOPIC_ID, "partitions": list(partitions)}]


def embedded(name: str, version: int, **message: Any) -> bytes:
    """What classic consumers say to each other."""
    encoded = codec.encode(f"ConsumerProtocol{name}", version, message)
    return version.to_bytes(2, "big") + encoded


def as_loaded(office: Office) -> Any:
    """What somebody who has the group's log knows of it."""
    office.restart()
    group = office.groups.groups.get("g")
    committed = office.committed()
    if isinstance(group, ConsumerGroup):
        return office.groups.consumers.describe("g"), committed
    return group and (group.generation_id, set(group.members), committed)
