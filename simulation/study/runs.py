"""Runs of the twin over the same trace: one after the other, or several at a time in processes of their own."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import get_context, parent_process

from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.outcome import Outcome
from baton.simulation.twin.trace_request import TraceRequest
from baton.simulation.twin.twin import simulate

RunAll = Callable[[Sequence[DeploymentPlan], Sequence[TraceRequest]], list[Outcome]]


def run_in_turn(plans: Sequence[DeploymentPlan], requests: Sequence[TraceRequest]) -> list[Outcome]:
    """All in this process."""
    return [simulate(plan, requests) for plan in plans]


@contextmanager
def run_at_once(num_processes: int) -> Iterator[RunAll]:
    """So many at a time. The processes are fresh ones, that get the requests with every run, and end with this one.

    A run raises BrokenProcessPool if one of them is ended from outside.
    """
    with ProcessPoolExecutor(num_processes, get_context("spawn"), _end_with_parent) as pool:
        yield lambda plans, requests: list(pool.map(simulate, plans, repeat(requests)))


def _end_with_parent() -> None:
    """However this process's parent ends: a pool's processes wait for work without ever noticing."""
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, name="end-with-parent", daemon=True).start()
