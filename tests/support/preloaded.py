"""C functions in front of those of the C library, for the processes that a test starts."""

import subprocess
from pathlib import Path

import pytest


def preload(source: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Compile and preload `source`, which reads what to do from the file that is answered; skip
    without a compiler."""
    code, library, where = (directory / name for name in ("shim.c", "shim.so", "where"))
    code.write_text(source)
    words = ["cc", "-shared", "-fPIC", "-o", str(library), str(code), "-ldl"]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as fault:
        pytest.skip(f"no C compiler: {fault}")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAIL_WHERE", str(where))
    return where
