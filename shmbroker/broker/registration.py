"""A broker's registration with the controllers, and what it asks the active one under it."""

from __future__ import annotations

from typing import Any

from shmbroker.errors import StorageFault
from shmbroker.ids import random_uuid
from shmbroker.wire import error_codes
from shmbroker.wire.api_keys import BROKER_HEARTBEAT, BROKER_REGISTRATION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from shmbroker.apis.contexts import ControllerLink
    from shmbroker.ipc.asking import Asking, OnAnswer
    from shmbroker.ipc.peer import Peer
    from shmbroker.log.log_directory import LogDirectory

ASK_ANOTHER = (error_codes.NOT_CONTROLLER, error_codes.NETWORK_EXCEPTION)
"""The controller has changed: what was asked was perhaps done, or surely not."""


class Registration:
    """endpoint: the address that clients reach this broker at."""

    def __init__(
        self,
        broker_id: int,
        endpoint: tuple[str, int],
        log_directory: LogDirectory,
        link: ControllerLink,
        asking: Asking,
    ) -> None:
        self.broker_id = broker_id
        self.epoch = -1
        """The broker epoch that the controller gave; -1 before."""
        self._endpoint = endpoint
        self._directory = log_directory
        self._link = link
        self._asking = asking
        self._is_asking = False

    def run(self) -> None:
        """Tell the controller that this broker is here, unless it knows or hears it already."""
        controller = self._link.peer()
        if self.epoch >= 0 or self._is_asking or controller is None:
            return
        host, port = self._endpoint
        directory = self._directory
        body = {
            "broker_id": self.broker_id,
            "cluster_id": directory.cluster_id,
            "incarnation_id": random_uuid(),
            "listeners": [
                {"name": "PLAINTEXT", "host": host, "port": port, "security_protocol": 0}
            ],
            "log_dirs": [directory.directory_id],
            "previous_broker_epoch": directory.clean_broker_epoch if directory.is_clean else -1,
        }
        self._is_asking = self._asking.ask(
            controller, BROKER_REGISTRATION, "BrokerRegistration", 4, body, self._on_registered
        )

    def _on_registered(self, body: dict[str, Any]) -> None:
        self._is_asking = False
        if body["error_code"] in ASK_ANOTHER:
            return
        if body["error_code"]:
            raise StorageFault(f"the controller refused broker {self.broker_id}")
        self.epoch = body["broker_epoch"]

    def ask(
        self, api_key: int, name: str, version: int, body: dict[str, Any], on_answer: OnAnswer
    ) -> bool:
        """Ask the active controller, with this broker's id and epoch in the request; False while
        there is none, or no room to ask it."""
        controller = self._link.peer()
        if controller is None:
            return False
        own = {"broker_id": self.broker_id, "broker_epoch": self.epoch}
        return self._asking.ask(controller, api_key, name, version, body | own, on_answer)

    def on_controller_lost(self, controller: Peer) -> None:
        """One that is dead, or not the active one any more: those who asked it are told so."""
        self._asking.fail(controller, error_codes.NOT_CONTROLLER)

    def ask_to_leave(self, metadata_offset: int, on_answer: OnAnswer) -> bool:
        """Have others lead what this broker leads: the answer comes when they do (KIP-631)."""
        body = {
            "current_metadata_offset": metadata_offset,
            "want_fence": False,
            "want_shut_down": True,
        }
        return self.ask(BROKER_HEARTBEAT, "BrokerHeartbeat", 1, body, on_answer)
