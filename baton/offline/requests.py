"""Requests of one call: sent to the router with bounded concurrency, and sent again if the router or a worker was lost.

1. As many tasks as may be in flight take the jobs in order. A request is made when it is sent.
2. The router continues a request at another worker if its worker is lost. If it cannot, or is itself lost, the task
   sends the request again: no output of it has been used.
3. The first request that fails ends the others. The outputs are returned in the order of the jobs.
"""

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import httpx
import orjson

from baton.offline.errors import RequestFailed
from baton.rpc.backoff import Backoff
from baton.rpc.router_client import ServerError, check

UNAVAILABLE = 503
TRANSIENT = frozenset({429, UNAVAILABLE})  # no room, or no worker at the moment
MAX_LOSSES = 5  # of one request; then it may be the cause
RETRY_S = 600.0  # from the first failure of a request to the last attempt
CONNECT_TIMEOUT_S = 10.0
FIRST_WAIT_S, LAST_WAIT_S = 0.1, 5.0  # between two attempts


@dataclass(frozen=True, slots=True)
class Request:
    """One request to the router."""

    path: str
    body: Mapping[str, object]


Answer = Mapping[str, Any]
T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


class Job(Protocol[T_co]):
    """A request and its output."""

    def request(self) -> Request:
        """Return the request."""
        ...

    def output(self, answer: Answer) -> T_co:
        """Return the output in a response's body."""
        ...


@dataclass(frozen=True, slots=True)
class Requests:
    """Sender of requests to one router."""

    url: str
    key: str
    check_server: Callable[[], None]  # raises Ended if the server has ended for good

    async def run(self, jobs: Sequence[Job[T]], max_in_flight: int, done: Callable[[], None]) -> list[T]:
        """Return the outputs of all jobs in order. `done` is called once for each.

        Raises RequestFailed with the index of the job, or Ended.
        """
        outputs: dict[int, T] = {}
        waiting = iter(enumerate(jobs))
        async with self._client() as client:

            async def work() -> None:
                for index, job in waiting:
                    outputs[index] = job.output(orjson.loads(await self._send(client, index, job.request())))
                    done()

            await _all(work() for _ in range(min(max_in_flight, len(jobs))))
        return [outputs[index] for index in range(len(jobs))]

    async def post(self, request: Request) -> None:
        """Send one request whose response has no output. Raises RequestFailed or Ended."""
        async with self._client() as client:
            await self._send(client, 0, request)

    def _client(self) -> httpx.AsyncClient:
        """Return a client without limits of its own: the tasks bound the number of connections."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"authorization": f"Bearer {self.key}", "content-type": "application/json"},
            timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
            trust_env=False,
            verify=False,
        )

    async def _send(self, client: httpx.AsyncClient, index: int, request: Request) -> bytes:
        """Return the content of the response to a request, which is sent again after a transient failure."""
        content, backoff = orjson.dumps(request.body), Backoff(FIRST_WAIT_S, LAST_WAIT_S)
        num_losses, give_up_s = 0, math.inf
        while True:
            try:
                response = await client.post(request.path, content=content)
                if response.status_code not in TRANSIENT:
                    check(response)
                    return response.content
                num_losses += response.status_code == UNAVAILABLE
                reason = response.text
            except httpx.TransportError as error:  # the router was lost; its supervisor starts it again
                self.check_server()
                num_losses += not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                reason = str(error) or type(error).__name__
            except ServerError as error:
                raise RequestFailed(index, str(error)) from None
            give_up_s = min(give_up_s, time.monotonic() + RETRY_S)
            if num_losses == MAX_LOSSES or time.monotonic() >= give_up_s:
                raise RequestFailed(index, f"the last of several attempts ended with: {reason}")
            await backoff.wait()


async def _all(works: Iterable[Coroutine[object, object, None]]) -> None:
    """Run coroutines. The first error cancels the rest and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            for work in works:
                group.create_task(work)
    except ExceptionGroup as errors:
        raised = errors.exceptions[0]
    else:
        return
    raise raised
