"""Work that does not depend on the machine: lines of Python that a call executes."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def count_lines(call: Callable[[], object]) -> int:
    """Return the number of lines that the call executes, including the functions that it calls."""
    num_lines = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal num_lines
        num_lines += event == "line"
        return trace

    earlier = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(earlier)
    return num_lines
