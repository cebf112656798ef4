"""Dispatcher of a run's requests.

In an open loop each request is sent at its time, whatever happens to earlier ones; its lag is recorded, because a large
lag means that the client was the bottleneck. In a closed loop each client sends a request when its previous one ended.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from baton.loadtool.arrivals import Arrivals, MaxConcurrency
from baton.loadtool.client import HttpClient
from baton.loadtool.plan import Limits, PlannedRequest
from baton.loadtool.record import Failure, RequestRecord
from baton.loadtool.response import ResponseReader


class Watcher(Protocol):
    """Observer of a run, for a progress bar."""

    def sent(self) -> None:
        """Handle a request that was sent."""
        ...

    def ended(self, record: RequestRecord) -> None:
        """Handle a request that has ended, successful or not."""
        ...


@dataclass(frozen=True, slots=True)
class LoadRun:
    """Result of a run."""

    arrivals: Arrivals
    records: list[RequestRecord]  # of the requests that have ended, in the order of their ends
    elapsed_s: float
    client_cpu_s: float  # CPU time of this process
    is_whole: bool  # False: interrupted; in-flight requests are left out


async def run_load(
    client: HttpClient, requests: Iterable[PlannedRequest], arrivals: Arrivals, limits: Limits, watcher: Watcher
) -> LoadRun:
    """Send the requests and wait for their responses. If cancelled, return those that have ended so far."""
    dispatcher = _Dispatcher(client, watcher)
    started_cpu_s = time.process_time()
    is_whole = True
    try:
        if isinstance(arrivals, MaxConcurrency):
            await dispatcher.closed_loop(requests, arrivals.num_clients, limits.duration_s)
        else:
            await dispatcher.open_loop(requests)
    except asyncio.CancelledError:
        is_whole = False
    return LoadRun(
        arrivals=arrivals,
        records=dispatcher.records,
        elapsed_s=dispatcher.now_s(),
        client_cpu_s=time.process_time() - started_cpu_s,
        is_whole=is_whole,
    )


class _Dispatcher:
    """Owner of the records of one run."""

    def __init__(self, client: HttpClient, watcher: Watcher) -> None:
        self.records: list[RequestRecord] = []
        self._client = client
        self._watcher = watcher
        self._started_s = perf_counter()

    def now_s(self) -> float:
        """Return the seconds since the start."""
        return perf_counter() - self._started_s

    async def open_loop(self, requests: Iterable[PlannedRequest]) -> None:
        async with asyncio.TaskGroup() as tasks:
            for request in requests:
                assert request.due_s is not None
                await asyncio.sleep(max(0.0, request.due_s - self.now_s()))  # yields even if late
                tasks.create_task(self._send(request))

    async def closed_loop(self, requests: Iterable[PlannedRequest], num_clients: int, duration_s: float | None) -> None:
        waiting = iter(requests)
        async with asyncio.TaskGroup() as tasks:
            for _ in range(num_clients):
                tasks.create_task(self._client_of(waiting, duration_s))

    async def _client_of(self, waiting: Iterator[PlannedRequest], duration_s: float | None) -> None:
        while duration_s is None or self.now_s() < duration_s:
            request = next(waiting, None)
            if request is None:
                return
            await self._send(request)

    async def _send(self, request: PlannedRequest) -> None:
        record = RequestRecord(request.num_output_tokens, request.due_s, self.now_s())
        record.num_prompt_tokens = request.num_prompt_tokens
        self._watcher.sent()
        reader = ResponseReader(record, self._started_s)
        try:
            await self._client.ask(request.payload, reader)
            reader.end()
        except TimeoutError:
            record.failure = Failure("timed out", "the response did not end in time")
        except OSError as error:
            record.failure = Failure("connection", str(error) or type(error).__name__)
        record.ended_s = self.now_s()
        self.records.append(record)
        self._watcher.ended(record)
