"""`shmbroker doctor bundle`: one file for a bug report, without records and without secrets.

   doctor.json      what the checks say
   facts.json       what they looked at
   directory.txt    names, sizes and times of the files in the data directory
   versions.txt     Python, kernel, packages
   config.txt       the file that --config names, if any; log.txt the end of that of --log

Rules:

* No record, key or value is read. Names of topics and groups are in it: the sentence says so.
* The value of each setting whose name speaks of a password, secret, token, credential or key, and
  the user and password of each URL, is replaced by `REMOVED` in all texts.
"""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from shmbroker.cli.doctor.facts import Facts

REMOVED = "[removed]"
FILES_MOST = 20_000
LOG_BYTES_MOST = 4 << 20
_NAME = re.compile(r"""(?<![\w.-])["']?([\w.-]{1,200})["']?[ \t]{0,20}[=:][ \t]{0,20}""")
_VALUE = re.compile(r"""\"[^"\n]*"|'[^'\n]*'|[^\n]+""")
_SECRET = re.compile(
    r"password|passwd|secret|token|credential|jaas|(access|private|api)[._-]?key", re.IGNORECASE
)
_URL = re.compile(r"(?<!\w)(\w{1,20}://)[^/\s:@]{1,200}:[^/\s@]{1,200}@")
_PEM = re.compile(r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)", re.DOTALL)


def without_secrets(text: str) -> str:
    """The text, with what may be a secret replaced."""
    text = _PEM.sub(REMOVED, text)
    text = _URL.sub(lambda found: f"{found[1]}{REMOVED}@", text)
    parts, at = [], 0
    while name := _NAME.search(text, at):
        parts.append(text[at : name.end()])
        at = name.end()
        value = _VALUE.match(text, at) if _SECRET.search(name[1]) else None
        if value is not None:
            parts.append(REMOVED)
            at = value.end()
    return "".join(parts) + text[at:]


def write(path: Path, texts: Mapping[str, str]) -> None:
    """Write a gzipped tar file of these texts, readable for its user; OSError if it is there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in texts.items():
            content = text.encode()
            row = tarfile.TarInfo(f"{path.name.split('.')[0]}/{name}")
            row.size = len(content)
            archive.addfile(row, io.BytesIO(content))


def texts(facts: Facts, report: Any, config: str | None, log: str | None) -> dict[str, str]:
    """What goes into it, by the names of the files."""
    found = {
        "doctor.json": _json(report),
        "facts.json": _json(asdict(facts)),
        "directory.txt": "\n".join(_listing(facts.directory.path)) + "\n",
        "versions.txt": "".join(
            f"{name} {version}\n" for name, version in sorted(facts.software.versions.items())
        ),
    }
    if config is not None:
        found["config.txt"] = Path(config).read_text(encoding="utf-8", errors="replace")
    if log is not None:
        found["log.txt"] = _end_of(log)
    return {name: without_secrets(text) for name, text in found.items()}


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, default=sorted, ensure_ascii=False)


def _end_of(path: str) -> str:
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - LOG_BYTES_MOST, 0))
        return file.read().decode(errors="replace")


def _listing(path: str) -> Iterator[str]:
    count = 0
    for directory, directories, names in os.walk(path):
        directories.sort()
        for name in sorted(names):
            file = os.path.join(directory, name)
            try:
                state = os.lstat(file)
            except OSError:
                continue  # removed meanwhile
            count += 1
            if count > FILES_MOST:
                yield "and more"
                return
            yield f"{state.st_size:>14} {state.st_mtime_ns // 10**6} {os.path.relpath(file, path)}"
