"""Files in quarantine: those that are there, bounded."""

from pathlib import Path

from shmbroker.console.put_aside import FILES_MAX, put_aside


def test_files_of_all_brokers_are_listed(tmp_path: Path) -> None:
    nodes = [str(tmp_path / "node-1"), str(tmp_path / "node-2")]
    assert put_aside(nodes) == []
    away = tmp_path / "quarantine" / "node-2" / "t-0"
    away.mkdir(parents=True)
    (away / "00000000000000000000.log").write_bytes(b"12345")
    (found,) = put_aside(nodes)
    assert found["path"] == str(away / "00000000000000000000.log")
    assert found["bytes"] == 5
    for number in range(FILES_MAX + 1):
        (away / f"{number}.log").touch()
    assert len(put_aside(nodes)) == FILES_MAX
