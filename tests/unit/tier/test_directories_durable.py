"""Directories of a store that somebody made who died before they were durable."""

from pathlib import Path

import pytest

from shmbroker.tier import directory_store
from shmbroker.tier.directory_store import DirectoryStore


def test_what_is_there_is_made_durable_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "store"
    (root / "topic" / "0").mkdir(parents=True)
    synced: list[str] = []
    monkeypatch.setattr(directory_store, "sync_directory", synced.append)
    store = DirectoryStore(str(root))
    store.put("topic/0/a", b"1")
    assert synced == [str(tmp_path), str(root), str(root / "topic"), str(root / "topic" / "0")]
    store.put("topic/0/b", b"2")
    assert synced[4:] == [str(root / "topic" / "0")]
