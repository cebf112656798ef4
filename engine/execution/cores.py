"""On which cores a thread computes; no torch."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from baton.engine.errors import EngineError


def parse_cores(text: str) -> tuple[int, ...]:
    """The cores that are written as Linux does, such as 0-3,8. Raises ValueError."""
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else not last)) or (dash and int(last) < int(first)):
            raise ValueError(f"cores are numbers and ranges of them, such as 0-3,8, and not {text!r}")
        cores += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(cores))


def format_cores(cores: Sequence[int]) -> str:
    """The same in words: ranges as far as cores follow each other."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cores_of_rank(text: str | None, rank: int, num_ranks: int) -> tuple[int, ...]:
    """The cores of one of the ranks that share a worker's; none if nobody said which.

    Raises EngineError for what are no cores, and for those that this process may not run on.
    """
    if text is None:
        return ()
    try:
        cores = parse_cores(text)
    except ValueError as error:
        raise EngineError(str(error)) from error
    allowed = os.sched_getaffinity(0)
    if not allowed.issuperset(cores):
        raise EngineError(f"cores: {text}, and this process may run on {format_cores(sorted(allowed))} only")
    if len(cores) < num_ranks:
        return cores
    return cores[rank * len(cores) // num_ranks : (rank + 1) * len(cores) // num_ranks]


@contextmanager
def running_on(cores: Sequence[int]) -> Iterator[None]:
    """This thread, and those that it starts meanwhile, run on these cores; on any if there are none.

    Memory comes from where it is first written from: whoever loads a model does it where that is computed.
    """
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
