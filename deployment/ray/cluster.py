"""A cluster on the connected Ray: the counterpart of `deployment/local/cluster.py`.

1. Two Serve applications are deployed, the workers and the router; each replica starts its process.
2. The cluster is ready when both run, and the router is ready and has every worker.
3. It runs until it is stopped. Ray replaces replicas that die.
4. At shutdown the router ends first, so that running requests can finish; then the workers.

Ray's calls block, perhaps forever, so each runs in its own daemon thread, which shutdown does not wait for.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview

from baton.deployment.local.events import ClusterReady, Ending, Listener, Progressed, process_age_s
from baton.deployment.local.router_view import num_open_requests, router_client, view_router
from baton.deployment.ray.app import JSON_LOG, router_application, workers_application
from baton.deployment.ray.connection import RayFailed
from baton.deployment.ray.settings import ROLES, RaySettings
from baton.process.progress import Ready

logger = logging.getLogger(__name__)

T = TypeVar("T")
WORKERS_APP, ROUTER_APP = "baton-workers", "baton"
POLL_INTERVAL_S = 0.2
READY_POLL_INTERVAL_S = 1.0  # once all workers have been ready


class RayCluster:
    """Owner of the two applications."""

    def __init__(self, settings: RaySettings, url: str, listener: Listener, watch_key: str | None) -> None:
        """Deploy nothing yet. `url` is the router's; `watch_key` is the API key for its /workers."""
        self._watch_key = watch_key
        self._settings = settings
        self._url = url
        self._listener = listener
        self._deploying: asyncio.Task[None] | None = None

    async def run(self, stop: asyncio.Event, kill: asyncio.Event) -> None:
        """Serve until `stop` is set; `kill` skips draining and leaves cleanup to Ray's shutdown. Raises RayFailed."""
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
            with suppress(RayFailed):  # the error of `life` is more helpful, if it failed
                await self._end(kill)
            [outcome] = await asyncio.gather(life, return_exceptions=True)
        if isinstance(outcome, Exception):
            raise outcome

    async def _live(self) -> None:
        self._deploying = asyncio.create_task(in_thread(self._deploy))
        await asyncio.shield(self._deploying)  # must finish even if cancelled: `_delete` ends what it deploys
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
                    self._listener(ClusterReady(self._url, process_age_s(), view.workers))
                await asyncio.sleep(READY_POLL_INTERVAL_S if is_ready else POLL_INTERVAL_S)

    def _deploy(self) -> None:
        if known := {WORKERS_APP, ROUTER_APP} & serve.status().applications.keys():
            raise RayFailed(f"this Ray cluster already has applications with these names: {', '.join(sorted(known))}")
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        log = JSON_LOG if self._settings.log.format == "json" else None
        serve.start(proxy_location="Disabled", logging_config=log)  # no HTTP proxy: clients connect to the router
        apps = {WORKERS_APP: workers_application(self._settings), ROUTER_APP: router_application(self._settings)}
        serve.run_many(
            [serve.RunTarget(app, name, route_prefix=None) for name, app in apps.items()],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )

    async def _wait_running(self) -> None:
        """Wait until all replicas run. Raises RayFailed with Serve's message if a deployment fails.

        Serve gives up on a deployment only while none of its replicas has started; later it retries, and its messages
        are logged.
        """
        logged: dict[str, str] = {}
        while True:
            status = await in_thread(serve.status)
            apps = [status.applications.get(name) for name in (WORKERS_APP, ROUTER_APP)]
            for app in apps:
                if app is None:
                    continue
                if app.status == ApplicationStatus.DEPLOY_FAILED:
                    raise RayFailed(_explain(app))
                for name, deployment in app.deployments.items():
                    if deployment.message and deployment.message != logged.get(name):
                        logged[name] = deployment.message
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
        """Delete the applications, the router first."""
        if self._deploying is None:
            return
        await asyncio.wait([self._deploying])
        if self._deploying.exception() is not None:
            return
        for name in (ROUTER_APP, WORKERS_APP):
            await in_thread(lambda: serve.delete(name, _blocking=False))  # noqa: B023  # it is awaited here
            while name in (await in_thread(serve.status)).applications:  # noqa: ASYNC110  # Ray has to be polled
                await asyncio.sleep(POLL_INTERVAL_S)


def _explain(app: ApplicationStatusOverview) -> str:
    """Return the messages of an application's failed deployments, or else its own message."""
    messages = [deployment.message for deployment in app.deployments.values() if "FAIL" in deployment.status]
    return "\n".join(message for message in messages if message) or app.message


async def in_thread(call: Callable[[], T]) -> T:
    """Run a blocking Ray call in a daemon thread, which is abandoned on cancellation. Raises RayFailed."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call())
        except (RayError, RayServeException) as error:
            future.set_exception(RayFailed(f"Ray: {error}"))
        except BaseException as error:  # raised in the awaiting task
            future.set_exception(error)

    threading.Thread(target=run, name="Ray's call", daemon=True).start()
    return await asyncio.wrap_future(future)
