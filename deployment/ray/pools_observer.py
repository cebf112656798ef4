"""Keeps what routers report, and what the cluster has, at hand for who must not wait for it."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.ray.observed_pools import ObservedPools
from baton.membership.registry.base import Registry, RegistryLost
from baton.membership.registry.factory import open_registry
from baton.membership.registry.router_report import RouterReport, decode_report

logger = logging.getLogger(__name__)

PERIOD_S = 1.0
TIMEOUT_S = 4.0  # of one look at the registry, all of its answers together

Budget = Callable[[], ScalingSettings]  # the settings within what there is; may block


@dataclass(frozen=True, slots=True)
class Sighting:
    """What was seen at one look."""

    seen_s: float  # monotonic clock
    pools: ObservedPools
    settings: ScalingSettings  # to plan with


class PoolsObserver:
    """Owns a daemon thread that looks once a second, from `start` to `stop`.

    Neither a registry that is lost nor a budget that hangs is more than an old sighting.
    """

    def __init__(self, registry: str, model: str | None, settings: ScalingSettings, budget: Budget) -> None:
        """Reports of other models are left out, if one is given. The `settings` hold until the budget is known."""
        self.latest: Sighting | None = None
        self.error = "nothing was seen yet"  # why there is no later one
        self._registry = registry
        self._model = model
        self._is_warned = False  # of texts that are no reports
        self._settings = settings
        self._budget = budget
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pools observer", daemon=True)

    def start(self) -> None:
        """Begins; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends within a second or so; returns at once."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._observe())
        except Exception:
            logger.exception("nobody looks at the pools any more")
            self.error = "the observer has failed"

    async def _observe(self) -> None:
        registry = open_registry(self._registry)
        budget = asyncio.create_task(self._follow_budget())
        try:
            while not self._stopping.is_set():
                await self._look(registry)
                await asyncio.sleep(PERIOD_S)
        finally:
            budget.cancel()
            await asyncio.gather(budget, return_exceptions=True)
            await registry.close()

    async def _look(self, registry: Registry) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                texts = await registry.reports.read()
            reports = own_reports(self._decoded(texts), self._model)
            pools = ObservedPools.of(reports)
        except (RegistryLost, TimeoutError, ValueError, ArithmeticError) as error:
            self._tell(str(error) or "the registry does not answer")
            return
        if not reports:
            self._tell("no router reports")
            return
        self._tell("")
        self.latest = Sighting(time.monotonic(), pools, self._settings)

    def _decoded(self, texts: Sequence[str]) -> list[RouterReport]:
        """The reports of these texts; what is none is left out, with one warning until there are only reports again."""
        reports, malformed = [], ""
        for text in texts:
            try:
                reports.append(decode_report(text))
            except ValueError as error:
                malformed = str(error)
        if malformed and not self._is_warned:
            logger.warning("a report in the registry is left out: %s", malformed)
        self._is_warned = bool(malformed)
        return reports

    def _tell(self, error: str) -> None:
        """Says a new error once."""
        if error and error != self.error:
            logger.warning("the pools are not seen: %s", error)
        self.error = error

    async def _follow_budget(self) -> None:
        while True:
            try:
                self._settings = await asyncio.to_thread(self._budget)
            except Exception:  # someone else's code must not end our looking
                logger.exception("the budget stays %d GPUs", self._settings.budget_gpus)
            await asyncio.sleep(PERIOD_S)


def own_reports(reports: Sequence[RouterReport], model: str | None) -> tuple[RouterReport, ...]:
    """The reports of one model. Raises ValueError for several models if none is given."""
    models = sorted({each.model for each in reports})
    if model is None and len(models) > 1:
        raise ValueError(f"there are routers of {', '.join(models)}; say which `model` the pools are of")
    return tuple(each for each in reports if model in (None, each.model))
