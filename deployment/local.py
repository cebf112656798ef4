"""A cluster on one machine: a router and its workers as processes.

1. Every process starts at once, each under a supervisor that starts it again when it dies.
2. The cluster is ready when every process was ready once, and the router has every worker and is ready itself.
3. It runs until it is stopped or a process does not get ready whatever is done.
4. At the end the router goes first, so that what runs can finish; then the workers; last what their groups meet at, if
   they are in groups. No process is left.
"""

import asyncio
import time
from collections.abc import Sequence

import httpx

from baton.deployment.ending import end_all
from baton.deployment.events import ClusterReady, Ending, Event, Listener, Progressed
from baton.deployment.supervisor import RestartPolicy, Supervisor
from baton.rpc.child_process import ProcessSpec
from baton.rpc.progress import Ready

POLL_INTERVAL_S = 0.1
END_MARGIN_S = 5.0  # beyond the time that processes take to drain


class LocalCluster:
    """Owns the processes: whatever happens, none outlives `run`."""

    def __init__(
        self,
        specs: list[ProcessSpec],
        url: str,
        listener: Listener,
        drain_timeout_s: float,
        policy: RestartPolicy,
        rendezvous: Sequence[ProcessSpec] = (),
    ) -> None:
        """`specs` has the router first; the others go by their workers' ids, and meet at `rendezvous` if in groups."""
        self._supervisors = [Supervisor(spec, policy, self._hear) for spec in specs]
        self._rendezvous = [Supervisor(spec, policy, self._hear) for spec in rendezvous]
        self._workers = {spec.name for spec in specs[1:]}
        self._loading = {spec.name for spec in (*specs, *rendezvous)}  # never ready so far
        self._url = url
        self._listener = listener
        self._end_timeout_s = drain_timeout_s + END_MARGIN_S

    async def run(self, stop: asyncio.Event, kill: asyncio.Event) -> None:
        """Serves until `stop`; `kill` cuts the end short. Raises GaveUp if a process does not get ready."""
        everyone = [*self._rendezvous, *self._supervisors]
        lives = [asyncio.create_task(supervisor.run()) for supervisor in everyone]
        stopped = asyncio.create_task(stop.wait())
        ready = asyncio.create_task(self._announce_ready())
        try:
            await asyncio.wait([*lives, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            ready.cancel()
            self._listener(Ending())
            router, *workers = self._supervisors
            await end_all(([router], workers, self._rendezvous), self._end_timeout_s, kill)
            outcomes = await asyncio.gather(ready, *lives, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    def _hear(self, event: Event) -> None:
        if isinstance(event, Progressed) and isinstance(event.progress, Ready):
            self._loading.discard(event.name)
        self._listener(event)

    async def _announce_ready(self) -> None:
        started_s = time.monotonic()
        # A process of our own at an address of this machine; its certificate is for the name that clients know.
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            while True:
                if not self._loading and await self._is_ready(client):
                    break
                await asyncio.sleep(POLL_INTERVAL_S)
        self._listener(ClusterReady(self._url, time.monotonic() - started_s))

    async def _is_ready(self, client: httpx.AsyncClient) -> bool:
        """Whether the router would send requests to every worker; one is enough for its own /ready."""
        try:
            told = (await client.get(f"{self._url}/workers")).raise_for_status().json()
        except httpx.HTTPError:
            return False  # the router does not listen yet
        ready = {worker["worker_id"] for worker in told["workers"] if worker["state"] == "ready"}
        return bool(told["router"]["ready"]) and self._workers <= ready
