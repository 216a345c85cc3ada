"""An ingest that is stopped, changed and gone on with, as users do: whatever the order, and
whatever is advised, every record is in the table once, and nothing is left of what failed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")
import pretended_spark
import pyarrow.dataset
from fake_family import FakeFamily, FakePartition
from pretended_spark import Killed

from shmbroker.errors import ConfigFault
from shmbroker.spark.ingest import checkpoint as checkpoints
from shmbroker.spark.ingest import files, plan, prepare, replay, table_state
from shmbroker.spark.ingest.plan import IngestPlan
from shmbroker.spark.ingest.task import DEAD_LETTER_SCHEMA, BadRecordFault, _letter

BAD = 5


class Ingest:
    """`shmbroker ingest t` with these options, and what it has written."""

    def __init__(self, family: FakeFamily, tmp_path: Path) -> None:
        self.family = family
        self.table = tmp_path / "data" / "table"
        self.letters = tmp_path / "data" / "bad"
        self.first = family.create("t")[0]
        self.source = {
            "kafka.bootstrap.servers": family.address,
            "subscribe": "t",
            "maxOffsetsPerTrigger": "4",
            "commitOffsets": "false",
        }

    def asked(self, **given: Any) -> prepare.AskedIngest:
        how = {name: given.pop(name) for name in list(given) if name in prepare.AskedIngest._fields}
        fields = {"path": str(self.table), "values": "json", "schema": "n int"} | given
        wanted = IngestPlan("", fields.pop("topic", "t"), **fields)
        source = self.source | {"subscribe": wanted.topic}
        named = [name for name in fields if name != "checkpoint"]
        return prepare.AskedIngest(wanted, named, source, **how)

    def run(self, dies: str = "", **given: Any) -> checkpoints.CheckpointDocument:
        asked = self.asked(**given)
        with prepare.opened(asked) as kept:
            if not prepare.has_nothing_new(kept, asked.source):
                pretended_spark.run(kept, asked.source, dies)
        return kept

    def replay(self, **given: Any) -> Any:
        with prepare.opened(self.asked(**given)) as kept:
            return replay.replay(kept.plan)

    def rows(self, path: Path | None = None) -> list[int]:
        table = pyarrow.dataset.dataset(path or self.table, partitioning="hive").to_table()
        return sorted(table["n"].to_pylist())


def fill(partition: FakePartition, numbers: range, bad: int = BAD) -> None:
    """A batch of each record, so that limits cut anywhere."""
    for n in numbers:
        value = b"oops" if n == bad else b'{"n": %d}' % n
        partition.append([(0, 1000 + partition.high_watermark, b"k", value, [])])


@pytest.fixture
def ingest(tmp_path: Path) -> Iterator[Ingest]:
    with FakeFamily(tmp_path / "broker") as family:
        yield Ingest(family, tmp_path)


GOOD = [n for n in range(12) if n != BAD]


@pytest.mark.parametrize("cure", [{"dead_letter_path": "bad"}, {"skips_bad": True}])
@pytest.mark.parametrize("dies", ["", "planned", "tasks", "committed"])
def test_what_the_message_of_a_bad_record_advises_goes_on_and_doubles_nothing(
    ingest: Ingest, cure: dict, dies: str
) -> None:
    fill(ingest.first, range(12))
    with pytest.raises(BadRecordFault, match=r"--dead-letter .*--skip-bad"):
        ingest.run()
    assert ingest.rows() == [0, 1, 2, 3]
    if "dead_letter_path" in cure:
        cure = {"dead_letter_path": str(ingest.letters)}
    if dies:
        with pytest.raises(Killed):
            ingest.run(dies, **cure)
    kept = ingest.run(**cure)
    assert ingest.rows() == GOOD
    assert kept.plan.since == 1
    assert kept.changes[0]["micro_batch"] == 1
    if not kept.plan.skips_bad:
        assert pyarrow.dataset.dataset(ingest.letters).to_table()["offset"].to_pylist() == [BAD]
    fill(ingest.first, range(12, 14))
    assert ingest.run().plan.skips_bad == kept.plan.skips_bad  # it stays so
    assert ingest.rows() == [*GOOD, 12, 13]


def test_dead_letters_of_an_unfinished_micro_batch_are_in_one_place(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ingest.first, range(12))
    other = ingest.letters.with_name("other")
    one = {"dead_letter_path": str(ingest.letters)}
    with pytest.raises(BadRecordFault):
        ingest.run()
    with prepare.opened(ingest.asked(**one)) as kept:
        commit = files.commit

        def dying(path: Path, *more: Any) -> bool:
            commit(path, *more)
            raise Killed  # between the letters and the rows

        monkeypatch.setattr(files, "commit", dying)
        with pytest.raises(Killed):
            pretended_spark.run(kept, ingest.source)
        monkeypatch.setattr(files, "commit", commit)
    assert list(ingest.letters.iterdir())
    ingest.run(dead_letter_path=str(other))
    assert list(ingest.letters.iterdir()) == []
    assert ingest.rows() == GOOD
    assert pyarrow.dataset.dataset(other).to_table()["offset"].to_pylist() == [BAD]


BEFORE = {"schema": "n int"}
CHANGES = [
    {"schema": "n int, more string"},
    {"schema": "n int", "record_columns": ("offset",)},
    {"schema": "n int", "target_bytes": 1 << 20, "compression": "zstd"},
]


@pytest.mark.parametrize("now", CHANGES)
@pytest.mark.parametrize("dies", ["", "planned", "tasks", "committed"])
def test_changed_settings_hold_from_there_on(ingest: Ingest, now: dict, dies: str) -> None:
    fill(ingest.first, range(10), bad=-1)
    if dies:
        with pytest.raises(Killed):
            ingest.run(dies)
    else:
        ingest.run()
    fill(ingest.first, range(10, 12), bad=-1)
    has_written = dies in ("", "committed")
    is_bound = "target_bytes" not in now
    if is_bound and has_written:
        with pytest.raises(ConfigFault, match="add --continue-with to use the new settings"):
            ingest.run(**now)
        ingest.run(continues=True, **now)
    else:
        ingest.run(**now)  # nothing is written yet, or it makes no other rows
    assert ingest.rows() == list(range(12))
    ingest.run(**now)
    assert ingest.rows() == list(range(12))


def test_the_same_schema_in_other_words_is_no_change(ingest: Ingest) -> None:
    fill(ingest.first, range(3))
    ingest.run(schema="n int, m bigint")
    assert ingest.run(schema="  n   INT ,m bigint").changes == ()


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"schema": "n bigint"}, r"column n as int32, not as int64"),
        ({"schema": "n int, k string", "partition_by": ("k",)}, "partitioned by nothing, not k"),
        ({"format": "json"}, "holds parquet, not json"),
    ],
)
def test_files_that_do_not_go_together_get_a_directory_of_their_own(
    ingest: Ingest, now: dict, told: str
) -> None:
    fill(ingest.first, range(4))
    ingest.run()
    fill(ingest.first, range(6, 9))
    with pytest.raises(ConfigFault, match=told) as fault:
        ingest.run(continues=True, **now)
    assert "give --to another directory, with --checkpoint" in str(fault.value)
    words = str(fault.value).split()
    old = words[words.index("--checkpoint") + 1]
    new = ingest.table.with_name("new")
    ingest.run(continues=True, checkpoint=old, **now | {"path": str(new)})
    assert ingest.rows() == [0, 1, 2, 3]
    names = [path.name for path in new.rglob("*.*") if path.is_file()]
    assert len(names) == 1
    # from then on it is the ingest of that directory, and no other begins there by mistake
    with pytest.raises(ConfigFault, match=f"--checkpoint {old} goes on with it"):
        ingest.run(**now | {"path": str(new)})
    with pytest.raises(ConfigFault, match=rf"with --to {new}, not .*table: .* give --to {new}"):
        ingest.run(checkpoint=old, **now | {"path": str(ingest.table)})
    ingest.run(checkpoint=old, **now | {"path": str(new)})
    assert [path.name for path in new.rglob("*.*") if path.is_file()] == names


@pytest.mark.parametrize("step", ["document", "committed"])
def test_another_directory_gets_only_what_the_first_has_not(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    fill(ingest.first, range(12), bad=-1)

    def dying(_document: Path) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        if step == "document":
            patched.setattr(files, "finish", dying)
        ingest.run("committed")
    old = str(table_state.state_root(str(ingest.table)) / "checkpoint-t")
    new = ingest.table.with_name("new")
    ingest.run(path=str(new), checkpoint=old, continues=True)
    assert ingest.rows() == [0, 1, 2, 3]
    assert ingest.rows(new) == list(range(4, 12))
    old_documents = table_state.state_root(str(new)).glob("*/batches/00000000.json")
    assert list(old_documents) == []


def test_what_has_written_nothing_binds_nothing_and_leaves_nothing(ingest: Ingest) -> None:
    data = ingest.table.parent
    with pytest.raises(ConfigFault, match="there is no topic nottthere"):
        ingest.run(topic="nottthere")
    with pytest.raises(ConfigFault, match="no column"):
        ingest.run(record_columns=("nonsense",))
    assert not data.exists()
    fill(ingest.first, range(4), bad=0)
    with pytest.raises(BadRecordFault):
        ingest.run()
    assert not ingest.table.exists()
    assert [path.name for path in data.iterdir()] == [".table.shmbroker"]
    assert [path.name for path in (data / ".table.shmbroker").iterdir()] == ["checkpoint-t"]
    ingest.run(values="raw", schema="")
    assert pyarrow.dataset.dataset(ingest.table).to_table()["value"].to_pylist()[0] == b"oops"


def test_an_empty_directory_of_the_user_stays(ingest: Ingest) -> None:
    ingest.table.mkdir(parents=True)
    with pytest.raises(ConfigFault):
        ingest.run(topic="nottthere")
    fill(ingest.first, range(4), bad=0)
    with pytest.raises(BadRecordFault):
        ingest.run()
    assert list(ingest.table.iterdir()) == []


def test_where_it_starts_is_not_changed_by_the_way(ingest: Ingest) -> None:
    fill(ingest.first, range(4), bad=0)
    with pytest.raises(BadRecordFault):
        ingest.run()
    with pytest.raises(
        ConfigFault, match=r"starts at earliest: leave --from out .*--continue-with"
    ):
        ingest.run(start="latest")
    kept = ingest.run(start="latest", continues=True)
    fill(ingest.first, range(4, 6), bad=-1)
    ingest.run(start="latest")  # as it was said before: a unit of systemd does so
    assert ingest.rows() == [4, 5]
    with pytest.raises(ConfigFault, match="--from is for a new ingest"):
        ingest.run(start="earliest")
    assert ingest.run().starts == kept.starts


@pytest.mark.parametrize(("start", "first"), [("latest", 4), ("1002", 2), ("earliest", 0)])
@pytest.mark.parametrize("dies", ["", "planned", "tasks", "committed"])
def test_a_start_is_the_same_after_a_crash(
    ingest: Ingest, start: str, first: int, dies: str
) -> None:
    fill(ingest.first, range(4), bad=-1)
    ingest.asked(start=start)
    with prepare.opened(ingest.asked(start=start)) as kept:
        assert prepare.has_nothing_new(kept, ingest.source) == (start == "latest")
    fill(ingest.first, range(4, 6), bad=-1)
    if dies:
        with pytest.raises(Killed):
            ingest.run(dies)
    ingest.run()
    assert ingest.rows() == list(range(first, 6))


def test_rows_of_another_ingest_of_the_topic_are_not_doubled_unless_told(
    ingest: Ingest, tmp_path: Path
) -> None:
    fill(ingest.first, range(4))
    ingest.run()
    other = str(tmp_path / "checkpoint")
    with pytest.raises(ConfigFault, match=r"holds rows of t already.*goes on with it") as fault:
        ingest.run(checkpoint=other)
    assert not Path(other).exists()
    words = str(fault.value).split()
    ingest.run(checkpoint=words[words.index("--checkpoint") + 1])
    assert ingest.rows() == [0, 1, 2, 3]
    # by the names of the files alone, when all else was removed
    for path in sorted(table_state.state_root(str(ingest.table)).rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(ConfigFault, match=r"holds rows of t already.*its checkpoint is gone"):
        ingest.run()
    ingest.run(appends=True)
    assert ingest.rows() == [0, 0, 1, 1, 2, 2, 3, 3]
    fill(ingest.family.create("u")[0], range(3))
    ingest.run(topic="u")  # another topic may
    assert len(ingest.rows()) == 11


def test_a_table_that_was_removed_is_told(ingest: Ingest) -> None:
    fill(ingest.first, range(4))
    checkpoint = ingest.run().plan.checkpoint
    for path in ingest.table.iterdir():
        path.unlink()
    ingest.table.rmdir()
    with pytest.raises(ConfigFault, match=f"remove its checkpoint {checkpoint}, too"):
        ingest.run()
    ingest.table.mkdir()
    ingest.run()
    assert list(ingest.table.iterdir()) == []
    Path(checkpoint).rename(ingest.table.with_name("removed"))
    ingest.run()
    assert ingest.rows() == [0, 1, 2, 3]


def test_a_table_that_has_no_file_yet_is_not_gone(ingest: Ingest) -> None:
    fill(ingest.first, range(1), bad=0)
    ingest.run(skips_bad=True)  # which leaves nothing for the table
    assert not ingest.table.exists()
    fill(ingest.first, range(4))
    old = ingest.run().plan.checkpoint
    new = {"path": str(ingest.table.with_name("new")), "checkpoint": old}
    ingest.run(continues=True, **new)  # and nothing new
    fill(ingest.first, range(4, 6), bad=-1)
    ingest.run(**new)
    assert ingest.rows() == [0, 1, 2, 3]
    assert ingest.rows(ingest.table.with_name("new")) == [4, 5]


def test_a_topic_has_a_checkpoint_of_its_own(ingest: Ingest, tmp_path: Path) -> None:
    fill(ingest.first, range(4))
    kept = ingest.run(checkpoint=str(tmp_path / "c"))
    fill(ingest.family.create("u")[0], range(3))
    with pytest.raises(ConfigFault, match="is of topic t: give --checkpoint another directory"):
        ingest.run(topic="u", checkpoint=kept.plan.checkpoint)


def test_dead_letters_are_replayed_once(ingest: Ingest) -> None:
    fill(ingest.first, range(12))
    with pytest.raises(ConfigFault, match="has no place for dead letters"):
        ingest.replay()
    ingest.run(dead_letter_path=str(ingest.letters))
    done = ingest.replay()
    assert (done.records, done.rows, done.skipped) == (1, 0, 1)
    ingest.first.append([(0, 9000, b"k", b'{"n": 1e3}', [])])
    ingest.run()
    assert ingest.rows() == GOOD
    # columns that take it
    widened = ingest.table.with_name("wide")
    old = ingest.run().plan.checkpoint
    wide = {"path": str(widened), "checkpoint": old, "schema": "n double"}
    done = ingest.replay(continues=True, **wide)
    assert (done.records, done.rows, done.skipped) == (2, 1, 1)
    assert ingest.rows(widened) == [1000.0]
    done = ingest.replay(**wide)
    assert (done.records, done.rows, done.skipped) == (1, 0, 1)
    assert ingest.rows(widened) == [1000.0]
    # those that are in one table are not written into the next
    third = {**wide, "path": str(ingest.table.with_name("third"))}
    assert ingest.replay(continues=True, **third).rows == 0


@pytest.mark.parametrize("step", ["before", "after"])
def test_a_replay_that_dies_is_done_once(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    fill(ingest.first, range(12))
    ingest.run(dead_letter_path=str(ingest.letters), schema="n int")
    monkeypatch.setattr(
        replay, "_letters", lambda plan: (mended(batch) for batch in replay._in_files(plan))
    )

    def mended(batch: Any) -> Any:
        value = pyarrow.array([b'{"n": 5}'] * batch.num_rows, pyarrow.binary())
        return batch.set_column(1, "value", value)

    finish = files.finish

    def dying(document: Path) -> None:
        if step == "after":
            finish(document)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(files, "finish", dying)
        with pytest.raises(Killed):
            ingest.replay()
    ingest.replay()
    assert ingest.rows() == list(range(12))


def test_letters_of_a_micro_batch_that_is_not_done_are_not_replayed(ingest: Ingest) -> None:
    fill(ingest.first, range(12))
    with pytest.raises(Killed):
        ingest.run("tasks", dead_letter_path=str(ingest.letters))
    with pytest.raises(ConfigFault, match="run the same command without --replay first"):
        ingest.replay()


def test_letters_in_a_topic_are_found_as_the_records_that_they_were() -> None:
    at = pyarrow.array([1_700_000_000_123_000], pyarrow.timestamp("us", tz="UTC"))
    row = {"topic": "t", "partition": 3, "offset": 17, "timestamp": at[0].as_py()}
    headers = [{"key": "topic", "value": b"theirs"}]
    content = {"key": b"k", "value": b"v", "headers": headers, "reason": "x"}
    batch = pyarrow.RecordBatch.from_pylist([row | content], DEAD_LETTER_SCHEMA)
    letter = _letter(batch, "6409ed68").append_column("timestamp", at)
    (found,) = replay._of_topic(IngestPlan("6409ed68", "t", "/p"), letter)
    assert found.schema.names == list(plan.RAW_COLUMNS)
    assert found.to_pylist()[0] == {
        "key": b"k",
        "value": b"v",
        "topic": "t",
        "partition": 3,
        "offset": 17,
        "timestamp": at[0].as_py(),
        "timestampType": 0,
    }
    assert list(replay._of_topic(IngestPlan("another1", "t", "/p"), letter)) == []


@pytest.mark.parametrize("has_died", [False, True])
def test_the_state_of_an_earlier_version_moves_out_of_the_table(
    ingest: Ingest, has_died: bool
) -> None:
    fill(ingest.first, range(12), bad=-1)
    ingest.table.mkdir(parents=True)
    inside = ingest.table / table_state.INSIDE
    inside.mkdir()
    if has_died:
        with pytest.raises(Killed):
            ingest.run("committed")
    else:
        ingest.run()
    inside.rename(ingest.table / files.BEFORE)
    lock = ingest.table / files.BEFORE / "checkpoint-t" / "lock"
    with prepare.running.only_one(lock.parent), pytest.raises(ConfigFault, match="stop it first"):
        ingest.run()
    ingest.run()
    assert [path.suffix for path in ingest.table.iterdir()] == [".parquet"] * 3
    assert ingest.rows() == list(range(12))


def test_where_nothing_can_be_beside_the_table_the_state_is_in_it(
    ingest: Ingest, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(ingest.first, range(4))
    rename = files.os.rename

    def across(source: Any, to: Any) -> None:
        if "probe" in str(source):
            raise OSError(18, "Invalid cross-device link")
        rename(source, to)

    monkeypatch.setattr(files.os, "rename", across)
    ingest.run()
    assert sorted(path.name for path in ingest.table.parent.iterdir()) == ["table"]
    assert ingest.run().plan.checkpoint == str(ingest.table / ".shmbroker" / "checkpoint-t")
    assert ingest.rows() == [0, 1, 2, 3]


def test_a_document_is_read_as_it_was_written() -> None:
    stored = IngestPlan("id", "t", "/p", values="json", schema="a int", partition_by=("a",))
    kept = checkpoints.CheckpointDocument(stored, "latest", {"t": {"0": 4}}, ({"micro_batch": 3},))
    assert checkpoints.read(kept.text()) == kept
    assert checkpoints.read(plan.to_json(stored)) == checkpoints.CheckpointDocument(stored)
    with pytest.raises(ConfigFault, match="damaged"):
        checkpoints.read("{")


def test_what_is_done_is_not_judged_again_by_other_rules(ingest: Ingest) -> None:
    fill(ingest.first, range(4), bad=1)
    with pytest.raises(Killed):
        ingest.run("committed", skips_bad=True)
    ingest.run(skips_bad=False)
    assert ingest.rows() == [0, 2, 3]
