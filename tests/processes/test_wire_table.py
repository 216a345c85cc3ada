"""docs/apis.md is what the code says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_table_of_apis_is_up_to_date() -> None:
    found = subprocess.run([sys.executable, ROOT / "scripts" / "make_api_table", "--check"])
    assert found.returncode == 0, "run scripts/make_api_table"
