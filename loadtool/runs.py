"""The runs of `baton bench`, one after the other."""

import asyncio
import gc
import resource
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import uvloop
from rich.console import Console

from baton.loadtool.arrivals import Arrivals, MaxConcurrency
from baton.loadtool.client import HttpClient
from baton.loadtool.dispatch import LoadRun, run_load
from baton.loadtool.errors import SettingError
from baton.loadtool.load_report import MeasuredRun, measured
from baton.loadtool.plan import Limits, PlannedRequest, Planner
from baton.loadtool.progress import ProgressBar
from baton.loadtool.slo import Slo
from baton.loadtool.terminal import show_run

WARMUP_SEED = 1 << 20  # above the seeds of the runs
MAX_WARMUP_CLIENTS = 8


@dataclass(frozen=True, slots=True)
class Sweep:
    """Sequence of runs, each with different prompts or (`same_prompts`) all with the same."""

    planner: Planner
    arrivals: Sequence[Arrivals]
    limits: Limits
    num_warmups: int
    seed: int
    same_prompts: bool
    timeout_s: float
    slo: Slo | None

    def run(self, console: Console, notes: Console) -> list[MeasuredRun]:
        """Run all loads, and print each result to `console`. Ctrl-C ends the current run and skips the rest."""
        _allow_many_connections()
        runs: list[MeasuredRun] = []
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if self.num_warmups:
                load = MaxConcurrency(min(self.num_warmups, MAX_WARMUP_CLIENTS))
                runner.run(self._run(load, Limits(self.num_warmups), WARMUP_SEED + self.seed, "warm-up", notes))
            for place, arrivals in enumerate(self.arrivals):
                seed = self.seed if self.same_prompts else self.seed + place
                run = runner.run(self._run(arrivals, self.limits, seed, arrivals.label, notes))
                runs.append(measured(run, self.slo))
                show_run(runs[-1].summary, console)
                if not run.is_whole:
                    break
        return runs

    async def _run(self, arrivals: Arrivals, limits: Limits, seed: int, label: str, notes: Console) -> LoadRun:
        with notes.status(f"{label}: preparing requests"):
            requests = self.planner.plan(arrivals, limits, seed)
        total = len(requests) if isinstance(requests, list) else None
        if total == 0:
            raise SettingError(f"{label}: no request is due within the duration")
        gc.collect()
        gc.freeze()  # keep the garbage collector off these objects during the measurement
        try:
            with ProgressBar(notes, label, total) as bar:
                return await self._send(requests, arrivals, limits, bar)
        finally:
            gc.unfreeze()

    async def _send(
        self, requests: Iterable[PlannedRequest], arrivals: Arrivals, limits: Limits, bar: ProgressBar
    ) -> LoadRun:
        target = self.planner.target
        client = HttpClient(target.host, target.port, target.tls(), self.timeout_s)
        running = asyncio.ensure_future(run_load(client, requests, arrivals, limits, bar))
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, running.cancel)
        try:
            return await running
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            client.close()


def _allow_many_connections() -> None:
    """Raise the limit of open files: an open loop may have thousands of requests in flight."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
