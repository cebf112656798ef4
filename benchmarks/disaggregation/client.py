"""Load client of one running system."""

import asyncio
import gc

from rich.console import Console

from baton.loadtool.arrivals import Arrivals
from baton.loadtool.client import HttpClient
from baton.loadtool.dispatch import LoadRun, run_load
from baton.loadtool.plan import Limits, Planner
from baton.loadtool.progress import ProgressBar
from baton.loadtool.target import Target
from benchmarks.disaggregation.trace import PROMPT_TOKENS, Trace

TIMEOUT_S = 120.0  # of a request


class Client:
    """Sender of a trace's requests to one system."""

    def __init__(self, target: Target, console: Console) -> None:
        self._target = target
        self._console = console

    async def run(self, trace: Trace, arrivals: Arrivals, seconds: float, seed: int) -> LoadRun:
        """Send requests for `seconds`, and wait for the responses. A new seed gives prompts that are not cached."""
        requests = Planner(trace.dataset, self._target, PROMPT_TOKENS).plan(arrivals, Limits(None, seconds), seed)
        client = HttpClient(self._target.host, self._target.port, self._target.tls(), TIMEOUT_S)
        total = len(requests) if isinstance(requests, list) else None
        gc.collect()
        gc.freeze()  # keep the garbage collector off these objects during the measurement
        try:
            with ProgressBar(self._console, f"{trace.name}, {arrivals.label}", total) as bar:
                run = await run_load(client, requests, arrivals, Limits(None, seconds), bar)
        finally:
            gc.unfreeze()
            client.close()
        if not run.is_whole:
            raise asyncio.CancelledError  # after Ctrl-C, which otherwise would end only this load
        return run
