"""A cluster on the Ray that this process is connected to, as `deployment/local/cluster.py` has it without Ray.

1. Two Serve applications are deployed, the workers and the router; each replica starts its process.
2. The cluster is ready when both run, and the router has every worker and is ready itself.
3. It runs until it is stopped. What dies meanwhile, Ray replaces.
4. At the end the router goes first, so that what runs can finish; then the workers.

Ray's calls block, perhaps for ever: each has a thread of its own, for which nobody waits at the end.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from baton.deployment.local.events import ClusterReady, Ending, Listener, Progressed
from baton.deployment.local.router_view import num_open_requests, router_client, view_router
from baton.deployment.ray.app import router_application, workers_application
from baton.deployment.ray.connection import RayFailed
from baton.deployment.ray.settings import ROLES, RaySettings
from baton.process.progress import Ready

logger = logging.getLogger(__name__)

T = TypeVar("T")
WORKERS_APP, ROUTER_APP = "baton-workers", "baton"
POLL_INTERVAL_S = 0.2
LOOK_S = 1.0  # at the router's workers, once all were ready


class RayCluster:
    """Owns the two applications."""

    def __init__(self, settings: RaySettings, url: str, listener: Listener, watch_key: str | None) -> None:
        """`url` is where the router is; `watch_key`: the API key with which it is asked about its workers."""
        self._watch_key = watch_key
        self._settings = settings
        self._url = url
        self._listener = listener
        self._deploying: asyncio.Task[None] | None = None

    async def run(self, stop: asyncio.Event, kill: asyncio.Event) -> None:
        """Serves until `stop`; `kill` cuts the end short and leaves the rest to Ray's own end. Raises RayFailed."""
        life = asyncio.create_task(self._live())
        stopped = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([life, stopped], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            life.cancel()
            async with router_client(self._watch_key) as client:
                num_requests = 0 if kill.is_set() else await num_open_requests(client, self._url)
            self._listener(Ending(num_requests, self._settings.drain_timeout_s))
            with suppress(RayFailed):  # the life's own words say more, if it failed
                await self._end(kill)
            [outcome] = await asyncio.gather(life, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome

    async def _live(self) -> None:
        started_s = time.monotonic()
        self._deploying = asyncio.create_task(in_thread(self._deploy))
        await asyncio.shield(self._deploying)  # who gives up on it has to end what it started
        await self._wait_running()
        num_workers = sum(self._settings.num_replicas(role) for role in ROLES)
        seen: dict[str, str] = {}
        is_ready = False
        async with router_client(self._watch_key) as client:
            while True:
                view = await view_router(client, self._url)
                ready = view.addresses if view is not None and view.is_ready else {}
                for worker_id in ready.keys() - seen.keys():
                    self._listener(Progressed(worker_id, Ready(ready[worker_id])))
                seen |= ready
                if view is not None and not is_ready and len(ready) >= num_workers:
                    is_ready = True
                    self._listener(ClusterReady(self._url, time.monotonic() - started_s, view.workers))
                await asyncio.sleep(LOOK_S if is_ready else POLL_INTERVAL_S)

    def _deploy(self) -> None:
        if known := {WORKERS_APP, ROUTER_APP} & serve.status().applications.keys():
            raise RayFailed(f"this Ray has applications of these names already: {', '.join(sorted(known))}")
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        serve.start(proxy_location="Disabled")  # if Serve does not run yet; clients come to the router itself
        apps = {WORKERS_APP: workers_application(self._settings), ROUTER_APP: router_application(self._settings)}
        serve.run_many(
            [serve.RunTarget(app, name, route_prefix=None) for name, app in apps.items()],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    async def _wait_running(self) -> None:
        """Returns once all replicas are there. Raises RayFailed with the words of one that cannot be.

        Serve gives a deployment up only while none of its replicas has started; else it tries on, and says why.
        """
        told: dict[str, str] = {}
        while True:
            status = await in_thread(serve.status)
            apps = [status.applications.get(name) for name in (WORKERS_APP, ROUTER_APP)]
            for app in apps:
                if app is None:
                    continue
                if app.status == ApplicationStatus.DEPLOY_FAILED:
                    raise RayFailed(_explain(app))
                for name, deployment in app.deployments.items():
                    if deployment.message and deployment.message != told.get(name):
                        told[name] = deployment.message
                        logger.warning("%s: %s", name, deployment.message)
            if all(app is not None and app.status == ApplicationStatus.RUNNING for app in apps):
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    async def _end(self, kill: asyncio.Event) -> None:
        ending = asyncio.create_task(self._delete())
        killed = asyncio.create_task(kill.wait())
        await asyncio.wait([ending, killed], return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if ending.done():
            ending.result()
        ending.cancel()

    async def _delete(self) -> None:
        """Ends the applications."""
        if self._deploying is None:
            return
        await asyncio.wait([self._deploying])
        if self._deploying.exception() is not None:
            return
        for name in (ROUTER_APP, WORKERS_APP):
            await in_thread(lambda: serve.delete(name, _blocking=False))  # noqa: B023  # it is awaited here
            while name in (await in_thread(serve.status)).applications:  # noqa: ASYNC110  # it is Ray's to tell
                await asyncio.sleep(POLL_INTERVAL_S)


def _explain(app: ApplicationStatusOverview) -> str:
    """What an application says of its failure, its deployments' words if they have any."""
    told = [deployment.message for deployment in app.deployments.values() if "FAIL" in deployment.status]
    return "\n".join(message for message in told if message) or app.message


async def in_thread(call: Callable[[], T]) -> T:
    """What one of Ray's calls returns. The thread is left alone if nobody waits any more. Raises RayFailed."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call())
        except (RayError, RayServeException) as error:
            future.set_exception(RayFailed(f"Ray: {error}"))
        except BaseException as error:  # whoever waits gets it
            future.set_exception(error)

    threading.Thread(target=run, name="Ray's call", daemon=True).start()
    return await asyncio.wrap_future(future)
