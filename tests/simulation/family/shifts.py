"""A client of a simulated family that changes what topics have in the remote store: copying ends
and goes on, remote storage is switched off with all copies deleted and on again (KIP-950), and what
is kept in all changes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from shmbroker.wire import error_codes
from tests.simulation.family.clients import RETRIED, FamilyClient, check_retried
from tests.simulation.family.network import Body, Disconnected, Script, Wait

TOPIC_RESOURCE = 2
REFUSED = frozenset((error_codes.INVALID_CONFIG,))
OFF = {"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"}
ON = {"remote.storage.enable": "true", "remote.log.copy.disable": "false"}
PAUSED = {
    "remote.log.copy.disable": "true",
    "local.retention.ms": "-2",
    "local.retention.bytes": "-2",
}
COMPACTED = {"cleanup.policy": "compact"}
SHIFTS = (OFF, OFF, ON, ON, ON, PAUSED, COMPACTED)


class Shifter(FamilyClient):
    """Changes the settings of topics, one at a time."""

    def __init__(self, *arguments: Any) -> None:
        self.is_tiered: dict[str, bool] = {}
        """As the last answer said."""
        super().__init__(*arguments)

    def script(self) -> Script:
        while not self.is_told_to_end:
            yield self.pause(0.1, 1.5)
            topics = sorted({topic for topic, _ in self.seen.places})
            if not topics:
                continue
            topic = self.random.choice(topics)
            shift = self.random.choice(SHIFTS)
            if shift is COMPACTED and not self.is_tiered.get(topic, True):
                continue
            if shift is ON:
                local_ms = self.random.choice(("0", "100", "400"))
                shift = shift | {"local.retention.ms": local_ms}
            yield from self._shift(topic, shift)

    def _shift(self, topic: str, shift: dict[str, str]) -> Generator[Wait, None, None]:
        rows = [
            {"name": name, "config_operation": 0, "value": value} for name, value in shift.items()
        ]
        resource: Body = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": rows}
        body = {"resources": [resource], "validate_only": False}
        self.say(f"changes {topic}: {shift}")
        while True:
            try:
                answer = yield from self.ask(self.any_port(), "IncrementalAlterConfigs", 1, body)
            except Disconnected:
                yield 0.1
                continue
            error = answer["responses"][0]["error_code"]
            check_retried(error, "IncrementalAlterConfigs", RETRIED | REFUSED | {0})
            if error in RETRIED:
                yield 0.1
                continue
            if shift is COMPACTED:
                assert error, f"{topic} is compacted, and has remote storage"
            elif not error and "remote.storage.enable" in shift:
                self.is_tiered[topic] = shift is not OFF
            self.say(f"{topic}: {answer['responses'][0]['error_message'] or 'is changed'}")
            return
