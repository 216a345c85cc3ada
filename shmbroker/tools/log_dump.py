"""The content of log files as plain values, one dict for each batch, record, entry or line.

Records of internal topics (`__consumer_offsets`, `__transaction_state`, `__share_group_state`,
`__cluster_metadata`) and control records are decoded; a record that doesn't decode is shown as
bytes, with the reason. Bytes that are no text are in base64, under `…_base64`.
"""

import base64
import json
from collections.abc import Iterator
from struct import Struct
from typing import Any

from shmbroker.crc32c import crc32c
from shmbroker.errors import CorruptFault, Fault, ProtocolFault
from shmbroker.ids import uuid_text
from shmbroker.log import checkpoints
from shmbroker.log.leader_epochs import LeaderEpochs
from shmbroker.log.partition_metadata import read_partition_metadata
from shmbroker.log.producer_state import read_snapshot
from shmbroker.metadata.topic_names import (
    METADATA_TOPIC,
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTION_TOPIC,
)
from shmbroker.records import batch_layout as layout
from shmbroker.records.batch import Record, control_type, iterate_records
from shmbroker.records.codecs import NAMES
from shmbroker.settings.java_properties import properties
from shmbroker.tools import log_files
from shmbroker.tools.log_files import Batch
from shmbroker.wire import codec, coordinator_records, schema
from shmbroker.wire.metadata_records import decode_metadata_record

Row = dict[str, Any]

OFFSET_MAX = 2**63 - 1
_LOGS = {
    OFFSETS_TOPIC: coordinator_records.GROUP,
    TRANSACTION_TOPIC: coordinator_records.TRANSACTION,
    SHARE_STATE_TOPIC: coordinator_records.SHARE,
}
_CONTROLS = {
    layout.CONTROL_ABORT: ("abort", "EndTxnMarker"),
    layout.CONTROL_COMMIT: ("commit", "EndTxnMarker"),
    layout.CONTROL_LEADER_CHANGE: ("leader-change", "LeaderChangeMessage"),
    layout.CONTROL_SNAPSHOT_HEADER: ("snapshot-header", "SnapshotHeaderRecord"),
    layout.CONTROL_SNAPSHOT_FOOTER: ("snapshot-footer", "SnapshotFooterRecord"),
    layout.CONTROL_KRAFT_VERSION: ("kraft-version", "KRaftVersionRecord"),
    layout.CONTROL_KRAFT_VOTERS: ("kraft-voters", "VotersRecord"),
}
_VERSION = Struct(">h")


def dump(
    path: str, *, with_records: bool = False, first: int = 0, last: int = OFFSET_MAX
) -> Iterator[Row]:
    """What a file holds between two offsets, inclusive, where it has offsets.

    CorruptFault, after what could be read, where the file is damaged.
    """
    kind = log_files.kind_of(path)
    if kind in (log_files.LOG, log_files.METADATA_SNAPSHOT):
        yield from _dump_segment(path, with_records, first, last)
    elif kind in log_files.ENTRIES:
        yield from (row for row in _dump_index(path) if first <= row["offset"] <= last)
    elif kind == log_files.SNAPSHOT:
        yield from _dump_snapshot(path)
    elif kind == log_files.EPOCHS:
        epochs = LeaderEpochs(path)
        epochs.load()
        for epoch, start in epochs.entries:
            yield {"type": "epoch", "leader_epoch": epoch, "start_offset": start}
    elif kind == log_files.OFFSET_CHECKPOINT:
        for (topic, partition), offset in checkpoints.read_offsets(path).items():
            yield {"type": "offset", "topic": topic, "partition": partition, "offset": offset}
    elif kind == log_files.PARTITION_METADATA:
        topic_id = read_partition_metadata(path)
        yield {"type": "partition", "topic_id": uuid_text(topic_id) if topic_id else None}
    elif kind == log_files.META_PROPERTIES:
        try:
            yield {"type": "properties", **properties(checkpoints.read_file(path) or "")}
        except ValueError as error:
            raise CorruptFault(f"{path}: {error}") from None
    else:
        yield {"type": "state", **_json(path)}


def _json(path: str) -> Row:
    text = checkpoints.read_file(path)
    try:
        content = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        raise CorruptFault(f"{path} is no JSON: {error}") from None
    return content if isinstance(content, dict) else {"content": content}


# --- segments ------------------------------------------------------------------------------------


def _dump_segment(path: str, with_records: bool, first: int, last: int) -> Iterator[Row]:
    topic = METADATA_TOPIC
    if log_files.kind_of(path) == log_files.LOG:
        topic = log_files.topic_of(path)
    for batch in log_files.read_batches(path):
        row = batch_row(batch)
        if row["last_offset"] < first or row["base_offset"] > last:
            continue
        yield row
        if with_records:
            try:
                for record in iterate_records(batch[2]):
                    if first <= record[0] <= last:
                        yield _record_row(topic, row["is_control"], record)
            except ProtocolFault as fault:
                raise CorruptFault(f"{path} at position {batch[0]}: {fault}") from None


def batch_row(batch: Batch) -> Row:
    """The fields of a batch's header."""
    position, header, data = batch
    base_offset, _, leader_epoch, _, crc, attributes, last_delta = header[:7]
    codec_id = attributes & layout.COMPRESSION_MASK
    return {
        "type": "batch",
        "position": position,
        "size": len(data),
        "base_offset": base_offset,
        "last_offset": base_offset + last_delta,
        "count": header[layout.H_COUNT],
        "leader_epoch": leader_epoch,
        "crc": crc,
        "is_crc_right": crc32c(data[layout.ATTRIBUTES_POSITION :]) == crc,
        "compression": NAMES[codec_id] if codec_id < len(NAMES) else f"unknown-{codec_id}",
        "timestamp_type": "append" if attributes & layout.TIMESTAMP_TYPE_BIT else "create",
        "base_timestamp": header[layout.H_BASE_TIMESTAMP],
        "max_timestamp": header[layout.H_MAX_TIMESTAMP],
        "producer_id": header[layout.H_PRODUCER_ID],
        "producer_epoch": header[layout.H_PRODUCER_EPOCH],
        "base_sequence": header[layout.H_BASE_SEQUENCE],
        "is_transactional": bool(attributes & layout.TRANSACTIONAL_BIT),
        "is_control": bool(attributes & layout.CONTROL_BIT),
        "has_delete_horizon": bool(attributes & layout.DELETE_HORIZON_BIT),
    }


def _record_row(topic: str, is_control: bool, record: Record) -> Row:
    offset, timestamp, key, value, headers = record
    row: Row = {"type": "record", "offset": offset, "timestamp": timestamp}
    try:
        if is_control:
            return row | _control(key or b"", value or b"")
        if topic == METADATA_TOPIC:
            name, version, message = decode_metadata_record(value or b"")
            content = readable(schema.message(name).fields, message)
            return row | {"record": name, "version": version, "value": content}
        if topic in _LOGS:
            return row | _coordinator_record(_LOGS[topic], key or b"", value)
    except (Fault, KeyError) as fault:
        row["not_decoded"] = str(fault)
    row |= _content("key", key) | _content("value", value)
    row["headers"] = [
        {"key": name.decode(errors="replace"), **_content("value", content)}
        for name, content in headers
    ]
    return row


def _control(key: bytes, value: bytes) -> Row:
    kind = control_type(key)
    if kind not in _CONTROLS:
        raise ProtocolFault(f"control record of unknown type {kind}")
    if len(value) < _VERSION.size:
        raise ProtocolFault("control record without a version")
    word, name = _CONTROLS[kind]
    (version,) = _VERSION.unpack_from(value)
    # A marker's version stands before its message, of all others it is the first field.
    if name == "EndTxnMarker":
        message = codec.decode_all(name, version, value, _VERSION.size)
    else:
        message = codec.decode_all(name, version, value)
    return {"control": word, "value": readable(schema.message(name).fields, message)}


def _coordinator_record(log: str, key: bytes, value: bytes | None) -> Row:
    record_type, message = coordinator_records.decode_key(log, key)
    if message is None:
        raise ProtocolFault(f"record of unknown type {record_type}")
    name = schema.names_of_kind(f"{log}-key")[record_type].removesuffix("Key")
    row: Row = {
        "record": name,
        "key": readable(schema.message(f"{name}Key").fields, message),
        "value": None,
    }
    if value is not None:
        row["version"], content = coordinator_records.decode_value(log, record_type, value)
        row["value"] = readable(schema.message(f"{name}Value").fields, content)
    return row


def readable(fields: list[schema.Field], message: Row) -> Row:
    """A decoded message with ids as Kafka writes them, and bytes as text or base64."""
    found: Row = {}
    for field in fields:
        value = message.get(field.name)
        if field.is_array and value is not None:
            found[field.name] = [_readable(field, item) for item in value]
        elif field.type in ("bytes", "records"):
            found |= _content(field.name, value)
        else:
            found[field.name] = _readable(field, value)
    return found


def _readable(field: schema.Field, value: Any) -> object:
    if value is None:
        return None
    if field.type == "{}":
        return readable(field.fields, value)
    if field.type == "uuid":
        return uuid_text(value)
    if field.type in ("bytes", "records"):
        return base64.b64encode(value).decode()
    return value


def _content(name: str, content: bytes | memoryview | None) -> Row:
    if content is None:
        return {name: None}
    content = bytes(content)
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        return {f"{name}_base64": base64.b64encode(content).decode()}
    return {name: text}


# --- indexes and snapshots -----------------------------------------------------------------------


def _dump_index(path: str) -> Iterator[Row]:
    kind, base = log_files.kind_of(path), log_files.base_offset_of(path)
    for _, entry in log_files.read_entries(path):
        if kind == log_files.INDEX:
            yield {"type": "entry", "offset": base + entry[0], "position": entry[1]}
        elif kind == log_files.TIME_INDEX:
            yield {"type": "entry", "timestamp": entry[0], "offset": base + entry[1]}
        else:
            yield {
                "type": "aborted",
                "producer_id": entry[1],
                "first_offset": entry[2],
                "offset": entry[3],
                "last_stable_offset": entry[4],
            }


def _dump_snapshot(path: str) -> Iterator[Row]:
    for producer_id, entry in read_snapshot(path).producers.items():
        _, delta, base_offset, _ = entry.batches[-1] if entry.batches else (-1, 0, -1, 0)
        yield {
            "type": "producer",
            "producer_id": producer_id,
            "producer_epoch": entry.epoch,
            "last_sequence": entry.last_sequence,
            "last_offset": base_offset + delta,
            "offset_delta": delta,
            "timestamp": entry.timestamp,
            "coordinator_epoch": entry.coordinator_epoch,
            "current_txn_first_offset": entry.current_txn_first_offset,
        }
