"""Requests about very many topics or resources, cut into parts that are decided one by one.

A decision holds up all others, and one about thousands of topics takes a second. Where each topic
or resource has a result of its own, the request is as good as several: each part is a decision and
a batch of records, and others are served between two (`ipc.operation_adapter`). What one topic or
resource asks for is never cut (`ActiveController.handle_in_steps` prepares it in steps instead).

Named twice in one request, a topic or resource is refused: so all of those are in the first part.
"""

from __future__ import annotations

from shmbroker.controller.decisions.configs import has_unknown_operation
from shmbroker.controller.decisions.placement import PARTITIONS_MAX
from shmbroker.controller.decisions.topic_creation import asked_partitions
from shmbroker.controller.decisions.topic_growth import added_partitions
from shmbroker.wire.row_by_row import RowByRow

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from shmbroker.metadata.image import MetadataImage
    from shmbroker.settings.broker_config import BrokerConfig

    Row = dict[str, Any]

_ROWS = {
    "CreateTopics": ("topics", "topics", ("name",)),
    "CreatePartitions": ("topics", "results", ("name",)),
    "AlterConfigs": ("resources", "responses", ("resource_type", "resource_name")),
    "IncrementalAlterConfigs": ("resources", "responses", ("resource_type", "resource_name")),
}
"""Where requests have their rows, where the responses have theirs, and by what both are known."""

WEIGHT_MAX = 1000
"""The weight of one part: rows, and what they ask for (partitions, settings); 10 us each, or
more."""


def parts_of(
    api_name: str, request: Row, image: MetadataImage, config: BrokerConfig
) -> list[Row] | None:
    """The requests to decide instead of this one; None: it is decided at once."""
    if api_name not in _ROWS or len(request[_ROWS[api_name][0]]) < 2:
        return None
    key, _, name = _ROWS[api_name]
    rows = request[key]
    weights = [_weight(api_name, row, image, config) for row in rows]
    if sum(weights) <= WEIGHT_MAX or _is_one_affair(api_name, rows, image, config):
        return None
    counts: dict[tuple[Any, ...], int] = {}
    for row in rows:
        identity = tuple(row[each] for each in name)
        counts[identity] = counts.get(identity, 0) + 1
    parts: list[list[Row]] = [[]]
    weight = 0
    alone = []
    for row, its in zip(rows, weights, strict=True):
        if counts[tuple(row[each] for each in name)] > 1:
            parts[0].append(row)
        else:
            alone.append((row, its))
    for row, its in alone:
        if parts[-1] and weight + its > WEIGHT_MAX:
            parts.append([])
            weight = 0
        parts[-1].append(row)
        weight += its
    return [request | {key: part} for part in parts]


class Joined:
    """One answer out of those of the parts, with the rows in the order of the request.

    It is encoded part by part: a topic that was created is told with all its settings, and that
    takes 15 us.
    """

    def __init__(self, api_name: str, version: int, request: Row) -> None:
        key, self._results, self._name = _ROWS[api_name]
        around: Row = {"throttle_time_ms": 0}
        self._throttle_ms = 0
        self._encoder = RowByRow(api_name + "Response", version, self._results, around)
        self._rows: dict[tuple[Any, ...], list[bytes]] = {
            tuple(row[each] for each in self._name): [] for row in request[key]
        }

    def add(self, response: Row) -> None:
        """Add the answer of one part."""
        encode, name = self._encoder.row, self._name
        self._throttle_ms = max(self._throttle_ms, response.get("throttle_time_ms", 0))
        for row in response[self._results]:
            self._rows[tuple(row[each] for each in name)].append(encode(row))

    def encoded(self) -> bytes:
        """The body of the answer, once that of each part is in."""
        whole = self._encoder.whole(row for rows in self._rows.values() for row in rows)
        return self._throttle_ms.to_bytes(4, "big") + whole[4:]  # its first field, in each version


def _weight(api_name: str, row: Row, image: MetadataImage, config: BrokerConfig) -> int:
    if api_name == "CreateTopics":
        return 1 + asked_partitions([row], config) + len(row["configs"])
    if api_name == "CreatePartitions":
        return 1 + added_partitions([row], image)
    return 1 + len(row["configs"])


def _is_one_affair(
    api_name: str, rows: list[Row], image: MetadataImage, config: BrokerConfig
) -> bool:
    """Whether the request is, or may be, refused as a whole."""
    if api_name == "CreateTopics":
        return asked_partitions(rows, config) > PARTITIONS_MAX
    if api_name == "IncrementalAlterConfigs":
        return any(map(has_unknown_operation, rows))
    return api_name == "CreatePartitions" and added_partitions(rows, image) > PARTITIONS_MAX
