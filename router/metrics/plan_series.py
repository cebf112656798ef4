"""The autoscaler's plan as routers show it: in `/workers`, which `baton status` prints, and as Prometheus series."""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from baton.membership.registry.base import Registry, RegistryLost
from baton.membership.registry.plan_report import MAX_PLANS, PlanReport, decode_plan
from baton.router.metrics.metrics import PREFIX

logger = logging.getLogger(__name__)

PERIOD_S = 2.0
MAX_DECISIONS = 12
GAUGES = (
    ("target", "Replicas that the autoscaler has asked for."),
    ("needed", "Replicas that the traffic needs, by the autoscaler's model."),
    (
        "factor",
        "Measured latencies over those of the autoscaler's uncorrected model, as a factor on a replica's times.",
    ),
)


class PlanSeries(Collector):
    """The last plan for a model, read from the registry; nothing while there is none."""

    def __init__(self, registry: Registry, model_name: str) -> None:
        self.latest: PlanReport | None = None
        self.decisions: deque[PlanReport] = deque(maxlen=MAX_DECISIONS)  # plans with new targets, the latest last
        self._registry = registry
        self._model_name = model_name

    async def run(self) -> None:
        """Keep `latest` up to date until cancelled. A plan that is not renewed lapses within seconds."""
        while True:
            try:
                texts = await self._registry.plans.read()
            except RegistryLost:  # the follower of the members warns of it
                texts = ()
            self._note(self._own(texts))
            await asyncio.sleep(PERIOD_S)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges, each by pool; all routers of a cluster show the same."""
        plan = self.latest
        if plan is None:
            return
        for name, text in GAUGES:
            gauge = GaugeMetricFamily(f"{PREFIX}autoscaler_{name}", text, labels=("model_name", "pool"))
            for pool in ("prefill", "decode"):
                gauge.add_metric((self._model_name, pool), getattr(getattr(plan, pool), name))
            yield gauge

    def _note(self, plan: PlanReport | None) -> None:
        self.latest = plan
        last = self.decisions[-1] if self.decisions else None
        if plan is not None and (last is None or _targets(plan) != _targets(last)):
            self.decisions.append(plan)

    def _own(self, texts: tuple[str, ...]) -> PlanReport | None:
        """Return the latest of this model's plans."""
        plans = []
        for text in texts[:MAX_PLANS]:
            try:
                plans.append(decode_plan(text))
            except ValueError as error:
                logger.debug("a plan in the registry is left out: %s", error)
        own = (plan for plan in plans if plan.model == self._model_name)
        return max(own, key=lambda plan: plan.time_s, default=None)


def _targets(plan: PlanReport) -> tuple[str, int, int]:
    return plan.application, plan.prefill.target, plan.decode.target
