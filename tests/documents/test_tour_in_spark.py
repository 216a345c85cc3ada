"""README's Python prints what is shown, on the records that the commands of its tour produce."""

import subprocess
import sys

import pytest

from tests.documents.blocks import Step, blocks_of
from tests.documents.test_commands import Tour
from tests.tidy.sources import ROOT

README = ROOT / "README.md"
SPARK_S = 300


@pytest.mark.spark
def test_the_tour_prints_what_it_shows_in_spark(tmp_path):
    blocks = blocks_of(README)
    programs = [at for at, block in enumerate(blocks) if block.kind == "python"]
    table, rows = (blocks[at + 1].text for at in programs)
    first_run = rows.splitlines()[0].partition("#")[0]
    commands = [step.command for block in blocks for step in block.steps()]
    tour = Tour(README, tmp_path)
    try:
        for beginning in ("shmbroker serve", "seq ", "shmbroker produce"):
            tour.run(Step(next(c for c in commands if c.startswith(beginning)), []))
        assert tour.broker
        text = "\n".join(blocks[at].text for at in programs)
        (tmp_path / "tour.py").write_text(text.replace("127.0.0.1:9092", tour.broker.address))
        ran = subprocess.run(
            [sys.executable, "tour.py"],
            capture_output=True,
            cwd=tmp_path,
            env=tour.environment,
            text=True,
            timeout=SPARK_S,
        )
    finally:
        tour.stop()
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == [*table.split(), *first_run.split()]
