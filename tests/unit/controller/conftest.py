"""A controller on a fresh directory, and another start of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from controller_at_work import CLUSTER_ID, NOW_MS, Start, join, open_controller

from shmbroker.controller.active_controller import ActiveController
from shmbroker.metadata.follower import MetadataFollower
from shmbroker.metadata.log_reader import MetadataLogReader
from shmbroker.settings.broker_config import BrokerConfig


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """start(**settings): a controller of node 1; all are closed at the end. What each has decided
    it has in its image as whoever reads its log."""
    started: list[ActiveController] = []

    def start(**settings: str) -> ActiveController:
        static = {name.replace("_", "."): text for name, text in settings.items()}
        controller = open_controller(str(tmp_path), CLUSTER_ID, BrokerConfig(static), NOW_MS)
        started.append(controller)
        return controller

    yield start
    for controller in started:
        controller.close()
        image = controller.image
        reader = MetadataLogReader(str(tmp_path / "__cluster_metadata-0"))
        follower = MetadataFollower(reader, CLUSTER_ID)
        follower.catch_up(image.offset)
        reader.close()
        assert follower.image == image


@pytest.fixture
def controller(start: Start) -> ActiveController:
    """A controller with broker 1 at work."""
    controller = start()
    join(controller, 1)
    return controller


@pytest.fixture
def three(start: Start) -> ActiveController:
    """A controller of a family with three replicas and brokers, all at work."""
    controller = start(shmbroker_replicas="3")
    for broker_id in (1, 2, 3):
        join(controller, broker_id)
    return controller
