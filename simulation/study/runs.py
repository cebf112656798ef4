"""Runs of the twin with one trace: one after the other, or concurrently in several processes."""

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
    """Run all plans in this process."""
    return [simulate(plan, requests) for plan in plans]


@contextmanager
def run_at_once(num_processes: int) -> Iterator[RunAll]:
    """Yield a function that runs `num_processes` plans at a time, in spawned processes that end with this one.

    It sends the requests with every run, and raises BrokenProcessPool if a process is killed.
    """
    with ProcessPoolExecutor(num_processes, get_context("spawn"), _end_with_parent) as pool:
        yield lambda plans, requests: list(pool.map(simulate, plans, repeat(requests)))


def _end_with_parent() -> None:
    """Exit when the parent process has ended: a pool's processes would otherwise wait for work forever."""
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end, name="end-with-parent", daemon=True).start()
