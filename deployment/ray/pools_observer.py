"""Background reader of the routers' reports and the cluster's budget, for a policy that must not block."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.ray.observed_pools import ObservedPools
from baton.membership.registry.base import Registry, RegistryLost
from baton.membership.registry.factory import open_registry
from baton.membership.registry.plan_report import PlanReport, encode_plan
from baton.membership.registry.router_report import RouterReport, decode_report

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
TIMEOUT_S = 4.0  # of one read of the registry
PLAN_S = 5.0  # for which a plan is published
MAX_SHOWN_MODELS, MAX_SHOWN_CHARS = 10, 100  # in an error

Budget = Callable[[], ScalingSettings]  # returns the settings limited to free capacity; may block


@dataclass(frozen=True, slots=True)
class Observation:
    """State of the pools at one time."""

    time_s: float  # monotonic clock
    pools: ObservedPools
    settings: ScalingSettings  # to plan with
    model: str = ""  # the routers' name of it


class PoolsObserver:
    """Owner of a daemon thread that reads the registry once a second, from `start` to `stop`.

    If the registry is lost or the budget hangs, the latest observation stays and grows old.
    """

    def __init__(self, registry: str, model: str | None, settings: ScalingSettings, budget: Budget) -> None:
        """Start nothing yet. Reports of other models are ignored; `settings` hold until a budget is read."""
        self.latest: Observation | None = None
        self.error = "no report was read yet"  # why `latest` is not newer
        self.plan: PlanReport | None = None  # to be shown by routers, while it is new
        self._registry = registry
        self._model = model
        self.num_invalid = 0  # reports that were refused at the last read
        self._settings = settings
        self._budget = budget
        self._stopping = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None  # of the thread
        self._thread = threading.Thread(target=self._run, name="pools observer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, within about a second; does not wait."""
        self._stopping.set()

    def submit(self, call: Coroutine[Any, Any, None]) -> "Future[None]":
        """Run a call on the thread's event loop, once something was observed. It is cancelled when the thread ends."""
        assert self._loop is not None, "nothing was observed yet"
        return asyncio.run_coroutine_threadsafe(call, self._loop)

    def _run(self) -> None:
        try:
            asyncio.run(self._observe())
        except Exception:
            logger.exception("the pools observer has failed")
            self.error = "the observer has failed"

    async def _observe(self) -> None:
        self._loop = asyncio.get_running_loop()
        registry = open_registry(self._registry)
        budget = asyncio.create_task(self._poll_budget())
        try:
            while not self._stopping.is_set():
                await self._observe_once(registry)
                await self._publish(registry)
                await asyncio.sleep(PERIOD_S)
        finally:
            budget.cancel()
            await asyncio.gather(budget, return_exceptions=True)
            await registry.close()

    async def _publish(self, registry: Registry) -> None:
        """Publish the plan if it is new: an old one does not explain the present sizes."""
        plan = self.plan
        if plan is not None and time.time() - plan.time_s < PLAN_S:
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    await registry.plans.publish(plan.application, encode_plan(plan))
            except (RegistryLost, TimeoutError) as error:
                logger.debug("the plan is not published: %s", error)

    async def _observe_once(self, registry: Registry) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                texts = await registry.reports.read()
            reports = own_reports(self._decoded(texts), self._model)
            pools = ObservedPools.of(reports)
        except (RegistryLost, TimeoutError, ValueError, ArithmeticError) as error:
            self._set_error(str(error) or "the registry does not respond")
            return
        if not reports:
            self._set_error("no valid router reports" if texts else "no router reports")
            return
        self._set_error("")
        self.latest = Observation(time.monotonic(), pools, self._settings, reports[0].model)

    def _decoded(self, texts: Sequence[str]) -> list[RouterReport]:
        """Decode the reports. Invalid ones are refused, with one warning until all are valid again."""
        reports, faults = [], []
        for text in texts:
            try:
                reports.append(decode_report(text))
            except ValueError as error:
                faults.append(str(error))
        if faults and not self.num_invalid:
            logger.warning("ignoring %d invalid router reports in the registry: %s", len(faults), faults[0])
        self.num_invalid = len(faults)
        return reports

    def _set_error(self, error: str) -> None:
        """Set the error, and log it if it is new."""
        if error and error != self.error:
            logger.warning("cannot observe the pools: %s", error)
        self.error = error

    async def _poll_budget(self) -> None:
        while True:
            try:
                self._settings = await asyncio.to_thread(self._budget)
            except Exception:  # an error of a client library must not end the loop
                logger.exception("cannot read the budget; keeping %d GPUs", self._settings.budget_gpus)
            await asyncio.sleep(PERIOD_S)


def own_reports(reports: Sequence[RouterReport], model: str | None) -> tuple[RouterReport, ...]:
    """Return the reports of one model. Raises ValueError if `model` is None and there are several."""
    models = sorted({each.model for each in reports})
    if model is None and len(models) > 1:
        shown = ", ".join(each[:MAX_SHOWN_CHARS] for each in models[:MAX_SHOWN_MODELS])
        raise ValueError(f"routers report several models ({shown}); set `model` to the pools' model")
    return tuple(each for each in reports if model in (None, each.model))
