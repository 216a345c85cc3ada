"""Work as a number that no busy machine changes: the bytecodes that a call runs."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def bytecodes_of(call: Callable[[], Any]) -> int:
    """How many the call runs, with all that it calls in Python."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
