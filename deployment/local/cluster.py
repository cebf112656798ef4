"""A cluster on one machine: a router and its workers as processes.

1. Every process starts at once, each under a supervisor that starts it again when it dies.
2. The cluster is ready when every process was ready once, and the router has every worker and is ready itself.
3. It runs until it is stopped. Processes that die are started again, without end once the cluster was ready; one that
   never was ready ends when a process does not get ready. Warnings in the logs are relayed.
4. At the end the router goes first, so that what runs can finish; then the workers; last what their groups meet at, if
   they are in groups. No process is left.
"""

import asyncio
import time
from collections.abc import Sequence

import httpx

from baton.deployment.local.events import ClusterReady, Ending, Event, GivenUp, Listener, Progressed
from baton.deployment.local.process_states import StatesWriter
from baton.deployment.local.router_view import RouterView, num_open_requests, router_client, view_router
from baton.deployment.local.supervisor import RestartPolicy, Supervisor, end_all
from baton.deployment.local.warning_relay import WarningRelay
from baton.process.child import ProcessSpec
from baton.process.progress import Ready

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
        states: StatesWriter | None = None,
        watch_key: str | None = None,
    ) -> None:
        """`specs` has the router first; the others go by their workers' ids, and meet at `rendezvous` if in groups.

        `states` tells the router of all processes. `watch_key`: the API key with which the router is asked about its
        workers.
        """
        self._watch_key = watch_key
        self._supervisors = [Supervisor(spec, policy, self._hear) for spec in specs]
        self._rendezvous = [Supervisor(spec, policy, self._hear) for spec in rendezvous]
        self._workers = {spec.name for spec in specs[1:]}
        self._loading = {spec.name for spec in (*specs, *rendezvous)}  # never ready so far
        self._url = url
        self._listener = listener
        self._states = states
        self._drain_timeout_s = drain_timeout_s
        self._relay = WarningRelay(
            [(spec.name, spec.log_path) for spec in (*specs, *rendezvous) if spec.log_path is not None], listener
        )
        self._end_timeout_s = drain_timeout_s + END_MARGIN_S

    async def run(self, stop: asyncio.Event, kill: asyncio.Event) -> None:
        """Serves until `stop`; `kill` cuts the end short. Raises GaveUp or OSError if the cluster was never ready and a
        process does not get ready; `stop` is then set too, so that the user's next signal is the one that kills."""
        lives = [asyncio.create_task(supervisor.run()) for supervisor in self._everyone]
        stopped = asyncio.create_task(stop.wait())
        watching = [asyncio.create_task(task) for task in (self._announce_ready(), self._relay.run())]
        try:
            await asyncio.wait([*lives, stopped], return_when=asyncio.FIRST_COMPLETED)
            self._announce_failure(lives)
        finally:
            stop.set()
            stopped.cancel()
            for task in watching:
                task.cancel()
            await self._announce_end(kill)
            router, *workers = self._supervisors
            await end_all(([router], workers, self._rendezvous), self._end_timeout_s, kill)
            self._relay.look()  # at what was said at the end
            outcomes = await asyncio.gather(*watching, *lives, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    @property
    def _everyone(self) -> list[Supervisor]:
        return [*self._rendezvous, *self._supervisors]

    def _hear(self, event: Event) -> None:
        if isinstance(event, Progressed) and isinstance(event.progress, Ready):
            self._loading.discard(event.name)
        if self._states is not None:
            self._states.hear(event)
        self._listener(event)

    async def _announce_ready(self) -> None:
        started_s = time.monotonic()
        async with router_client(self._watch_key) as client:
            while (view := await self._ready_view(client)) is None:  # noqa: ASYNC110  # the router's to say
                await asyncio.sleep(POLL_INTERVAL_S)
        for supervisor in self._everyone:
            supervisor.persist()
        self._relay.look()  # warnings of the start are above the announcement
        self._listener(ClusterReady(self._url, time.monotonic() - started_s, view.workers))

    async def _ready_view(self, client: httpx.AsyncClient) -> RouterView | None:
        """The router's view once it would send requests to every worker; one is enough for its own /ready."""
        view = None if self._loading else await view_router(client, self._url)
        return view if view is not None and view.is_ready and self._workers <= view.addresses.keys() else None

    def _announce_failure(self, lives: Sequence[asyncio.Task[None]]) -> None:
        """Report why the cluster ends, before the end of the other processes, which may take a while."""
        for life in lives:
            if life.done() and not life.cancelled() and (error := life.exception()) is not None:
                self._listener(GivenUp(str(error)))

    async def _announce_end(self, kill: asyncio.Event) -> None:
        """Says what the end waits for."""
        async with router_client(self._watch_key) as client:
            num_requests = 0 if kill.is_set() else await num_open_requests(client, self._url)
        self._listener(Ending(num_requests, self._drain_timeout_s))
