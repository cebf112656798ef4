"""CPU cores that a thread computes on; no torch."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from baton.engine.errors import EngineError


def parse_cores(text: str) -> tuple[int, ...]:
    """Parse a Linux core list such as 0-3,8. Raises ValueError."""
    cores: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else not last)) or (dash and int(last) < int(first)):
            raise ValueError(f"cores must be numbers and ranges such as 0-3,8, not {text!r}")
        cores += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(cores))


def format_cores(cores: Sequence[int]) -> str:
    """Format cores as a Linux core list, with consecutive cores as ranges."""
    ranges: list[list[int]] = []
    for core in sorted(cores):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def cores_of_rank(text: str | None, rank: int, num_ranks: int) -> tuple[int, ...]:
    """Return one rank's share of a worker's cores; empty if `text` is None, all of them if there are too few to share.

    Raises EngineError for an invalid core list, or for cores that this process may not run on.
    """
    if text is None:
        return ()
    try:
        cores = parse_cores(text)
    except ValueError as error:
        raise EngineError(str(error)) from error
    allowed = os.sched_getaffinity(0)
    if not allowed.issuperset(cores):
        raise EngineError(f"cores is {text}, but this process may only run on {format_cores(sorted(allowed))}")
    if len(cores) < num_ranks:
        return cores
    return cores[rank * len(cores) // num_ranks : (rank + 1) * len(cores) // num_ranks]


@contextmanager
def running_on(cores: Sequence[int]) -> Iterator[None]:
    """Pin this thread, and threads that it starts in the meantime, to `cores`; no pinning if empty.

    Memory is allocated on the NUMA node that first writes it, so load a model on the cores that compute it.
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
