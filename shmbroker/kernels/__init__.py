"""Compiled loops over record bytes, where there is a compiler; the one place that knows.

    native        the extension module (C, stable ABI of CPython 3.11), or None where it was not
                  built or is turned off. Each use of it has a way without it:

    decoding      record batches to Arrow          client/reader/decode.py        else numpy
    encoding      Arrow columns to record batches  client/producer/encoding.py    else numpy
    walk          records of a produced batch      records/validation.py          else numpy
    compaction    keys, the map of them, new files log/compaction/engine.py       else numpy
    appends       batches of a Produce, to a ring  gateway/produce_many.py        else Python
    plain         batches from a ring, to segments broker/append_runs.py          else Python
    straight      what guests ask, to its answers  guests/straight.py             else Python
    standing      answers that are given again     gateway/standing_ready.py      else Python
    rings, ready  of those that a process reads    shm/rings.py                   else Python
    look          at them, before it sleeps        ipc/core.py                    else Python

`_native.pyi` has the signatures and what each raises, `kernels.h` the layouts, one `.c` file each
loop. Rules: whatever the bytes say, nothing outside of the given buffers is read or written; the
interpreter lock is released meanwhile (but for `plain` and `standing`, and for `straight` until it
sends); nothing is allocated; what is wrong is a ValueError.

`python -m shmbroker.kernels` says whether they are there; `make kernels` builds them in a clone.
SHMBROKER_KERNELS: `off` does without, `required` makes it an ImportError if they are missing.
"""

from __future__ import annotations

import os
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_wanted = os.environ.get("SHMBROKER_KERNELS", "on").lower()

BUILD = 18
"""What `kernels.h` says, too: a build of an earlier source is as good as none."""

native: ModuleType | None = None
if _wanted != "off":
    try:
        native = import_module("shmbroker.kernels._native")
        if getattr(native, "BUILD", 1) != BUILD:
            native = None
            raise ImportError("the compiled kernels are older than their sources: make kernels")
    except ImportError:
        if _wanted == "required":
            raise
