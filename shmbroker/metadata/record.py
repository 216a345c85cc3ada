"""A record of the metadata log: as it is decided, and as it is read. Types alone."""

from typing import Any

MetadataRecord = tuple[str, int, dict[str, Any]]
"""name, version, message; `wire.metadata_records` has the bytes."""

PlacedRecord = tuple[int, int, str, int, dict[str, Any]]
"""offset, epoch, name, version, message"""
