"""An answer that is encoded row by row has the bytes of the one that is encoded at once."""

from typing import Any

import pytest

from shmbroker.wire import codec
from shmbroker.wire.row_by_row import RowByRow

SETTING = {"name": "retention.ms", "value": "1", "config_source": 1}
TOPIC = {"name": "t", "error_code": 0, "error_message": "no", "configs": [SETTING] * 3}
RESOURCE = {"error_code": 3, "error_message": None, "resource_type": 2, "resource_name": "t"}
MESSAGES = [
    *(("CreateTopicsResponse", version, "topics", TOPIC) for version in range(5, 8)),
    *(("CreateTopicsResponse", version, "topics", TOPIC | {"configs": []}) for version in (2, 4)),
    *(("CreatePartitionsResponse", version, "results", TOPIC) for version in range(4)),
    *(("AlterConfigsResponse", version, "responses", RESOURCE) for version in range(3)),
    *(("IncrementalAlterConfigsResponse", version, "responses", RESOURCE) for version in range(2)),
]


@pytest.mark.parametrize("count", [0, 1, 126, 127, 20_000])
@pytest.mark.parametrize(("name", "version", "array", "row"), MESSAGES)
def test_row_by_row_has_the_bytes_of_the_whole(
    name: str, version: int, array: str, row: dict[str, Any], count: int
) -> None:
    around = {"throttle_time_ms": 7}
    by_row = RowByRow(name, version, array, around)
    rows = [row | {"error_code": code % 3} for code in range(3)]
    encoded = [by_row.row(each) for each in rows]
    whole = codec.encode(name, version, around | {array: [rows[at % 3] for at in range(count)]})
    assert by_row.whole(encoded[at % 3] for at in range(count)) == whole
