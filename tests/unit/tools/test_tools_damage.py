"""Whatever bytes a file holds, dump and verify end with rows and a CorruptFault, nothing else."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shmbroker.cli.log import as_text
from shmbroker.errors import StorageFault
from shmbroker.records.batch import control_batch, encode_batch
from shmbroker.tools.log_dump import dump
from shmbroker.tools.log_verify import verify
from shmbroker.wire import coordinator_records
from tests.support.examples import examples

KEY = coordinator_records.encode_key("group", 1, {"group": "g", "topic": "t", "partition": 1})
VALUE = coordinator_records.encode_value("group", 1, 3, {"offset": 7, "metadata": "m"})
WHOLE = {
    "__consumer_offsets-0/00000000000000000000.log": encode_batch([(5, KEY, VALUE, [])] * 3)
    + encode_batch([(5, KEY, None, [(b"h", b"1")])] * 3, base_offset=3, codec=1),
    "__cluster_metadata-0/00000000000000000000.log": control_batch(2, bytes(40), timestamp=1)
    + encode_batch([(5, None, b"\x01\x14\x00\x00", [])], base_offset=1),
    "t-0/00000000000000000000.index": bytes(range(64)),
    "t-0/00000000000000000000.timeindex": bytes(range(48)),
    "t-0/00000000000000000000.txnindex": bytes(34),
    "t-0/00000000000000000000.snapshot": bytes(56),
    "t-0/leader-epoch-checkpoint": b"0\n1\n0 0\n",
    "t-0/partition.metadata": b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA",
    "recovery-point-offset-checkpoint": b"0\n1\nt 0 7\n",
    "meta.properties": b"node.id=1\nversion=1\n",
    "quorum-state": b'{"leaderId":1}',
}
CHANGES = st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)), max_size=8)


@pytest.mark.parametrize("name", WHOLE)
@settings(
    max_examples=examples(60),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(changes=CHANGES, cut=st.integers(0, 500), tail=st.binary(max_size=70))
def test_any_damage_is_a_fault_or_nothing(
    tmp_path: Path, name: str, changes: Any, cut: int, tail: bytes
) -> None:
    content = bytearray(WHOLE[name])
    for place, byte in changes:
        content[place % len(content)] = byte
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content[:cut] + tail)
    try:
        for row in dump(str(path), with_records=True):
            assert isinstance(as_text(row), str)
    except StorageFault as fault:
        assert str(path) in str(fault)
    for verdict in verify(str(path), with_records=True):
        assert verdict.fault is None or str(path) in verdict.fault


@pytest.mark.parametrize("name", WHOLE)
@settings(
    max_examples=examples(30),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(content=st.binary(max_size=300))
def test_any_bytes_are_a_fault_or_nothing(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    try:
        list(dump(str(path), with_records=True))
    except StorageFault as fault:
        assert str(path) in str(fault)
    for verdict in verify(str(path), with_records=True):
        assert verdict.fault is None or str(path) in verdict.fault
