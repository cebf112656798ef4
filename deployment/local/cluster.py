"""A cluster on one machine: a router and its workers as processes.

1. All processes start at once, each under a supervisor that restarts it when it dies.
2. The cluster is ready when every process has been ready once, and the router is ready and has every worker.
3. It runs until it is stopped. Before the cluster is ready, a process that fails to start ends the cluster; afterwards
   restarts are unlimited. Warnings in the logs are relayed to the listener.
4. At shutdown the router ends first, so that running requests can finish; then the workers; then the rendezvous, if
   there are worker groups. No process is left behind.
"""

import asyncio
from collections.abc import Sequence

import httpx

from baton.deployment.local.events import (
    ClusterReady,
    Ending,
    Event,
    GivenUp,
    Listener,
    Progressed,
    process_age_s,
)
from baton.deployment.local.process_states import StatesWriter
from baton.deployment.local.router_view import RouterView, num_open_requests, router_client, view_router
from baton.deployment.local.supervisor import RestartPolicy, Supervisor, end_all
from baton.deployment.local.warning_relay import WarningRelay
from baton.process.child import ProcessSpec
from baton.process.progress import Ready

POLL_INTERVAL_S = 0.1
END_MARGIN_S = 5.0  # after the drain timeout, until processes are killed


class LocalCluster:
    """Owner of the cluster's processes. None of them outlives `run`, even if it raises."""

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
        """Start nothing yet.

        `specs` has the router first, then the workers, named by worker id. `rendezvous` is empty if there are no worker
        groups. `states` reports the state of all processes to the router. `watch_key` is the API key for the router's
        /workers.
        """
        self._watch_key = watch_key
        self._supervisors = [Supervisor(spec, policy, self._handle) for spec in specs]
        self._rendezvous = [Supervisor(spec, policy, self._handle) for spec in rendezvous]
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
        """Serve until `stop` is set; `kill` skips draining.

        Raises GaveUp or OSError if a process fails before the cluster was ready. `stop` is then set too, so that the
        user's next signal kills.
        """
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
            self._relay.poll()  # relay the last warnings
            outcomes = await asyncio.gather(*watching, *lives, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome

    @property
    def _everyone(self) -> list[Supervisor]:
        return [*self._rendezvous, *self._supervisors]

    def _handle(self, event: Event) -> None:
        if isinstance(event, Progressed) and isinstance(event.progress, Ready):
            self._loading.discard(event.name)
        if self._states is not None:
            self._states.update(event)
        self._listener(event)

    async def _announce_ready(self) -> None:
        async with router_client(self._watch_key) as client:
            while (view := await self._ready_view(client)) is None:  # noqa: ASYNC110  # the router has to be polled
                await asyncio.sleep(POLL_INTERVAL_S)
        for supervisor in self._everyone:
            supervisor.persist()
        self._relay.poll()  # print startup warnings above the announcement
        self._listener(ClusterReady(self._url, process_age_s(), view.workers))

    async def _ready_view(self, client: httpx.AsyncClient) -> RouterView | None:
        """Return the router's view once every worker is in it; None before. The router's /ready needs only one."""
        view = None if self._loading else await view_router(client, self._url)
        return view if view is not None and view.is_ready and self._workers <= view.addresses.keys() else None

    def _announce_failure(self, lives: Sequence[asyncio.Task[None]]) -> None:
        """Report why the cluster failed, before shutting down the other processes, which may take a while."""
        for life in lives:
            if life.done() and not life.cancelled() and (error := life.exception()) is not None:
                self._listener(GivenUp(str(error)))

    async def _announce_end(self, kill: asyncio.Event) -> None:
        """Report the number of requests that the shutdown waits for."""
        async with router_client(self._watch_key) as client:
            num_requests = 0 if kill.is_set() else await num_open_requests(client, self._url)
        self._listener(Ending(num_requests, self._drain_timeout_s))
