"""The state of the cluster as the console shows it: a message of bounded size, however large the cluster is."""

import heapq
import time
from collections.abc import Sequence
from dataclasses import dataclass

from baton.membership.registry.plan_report import PlanReport
from baton.router.console.adapter_rows import AdapterRow, adapter_rows
from baton.router.console.worker_rows import MAX_TEXT_CHARS, PoolRow, WorkerRow, pool_rows
from baton.router.metrics.live import LiveCompletion, LiveCompletions, Stage
from baton.router.metrics.recent import SPAN_S, Figures, RecentError
from baton.router.served_model import ServedModel
from baton.router.tracing.recent_request import RecentRequest
from baton.router.tracing.timelines import Timelines

MAX_WORKERS = 200
MAX_STAGE_REQUESTS = 40  # of each stage
MAX_MODELS = 8
MAX_REASON_CHARS = 600


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One completion that has not ended."""

    id: str
    index: int
    age_s: float
    ttft_s: float | None  # None: no token has arrived
    tokens: int
    max_tokens: int
    prompt_tokens: int
    prefill: str  # id of the worker; empty: the decode worker itself, or none yet
    decode: str
    attempts: int


@dataclass(frozen=True, slots=True)
class StageRow:
    """A stage of requests."""

    stage: str
    num: int
    requests: tuple[RequestRow, ...]  # those that have been in it for the longest time


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A decision of the autoscaler."""

    time_s: float  # Unix time
    prefill_target: int
    prefill_needed: int
    decode_target: int
    decode_needed: int
    reason: str


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One model."""

    name: str
    ready: bool
    waiting: int  # in the router's queue, or for a first worker; in no stage
    oldest_wait_s: float
    ttft_target_s: float | None  # None: no targets are set
    tpot_target_s: float | None
    total: Figures  # of the last minute
    series: tuple[Figures, ...]  # the oldest first
    stages: tuple[StageRow, ...]
    errors: tuple[RecentError, ...]  # the latest first
    plans: tuple[PlanRow, ...]  # the latest first
    plan: PlanRow | None  # the current one; None: no autoscaler plans now
    adapters: tuple[AdapterRow, ...]
    num_adapters: int


@dataclass(frozen=True, slots=True)
class ConsoleSnapshot:
    """One message to the console."""

    time_s: float  # Unix time
    version: str
    process: int | None  # number of this router process; None: it is the only one
    processes: int
    policy: str
    registry: str
    registry_error: str
    draining: bool
    span_s: float  # of each figure in a series
    models: tuple[ModelRow, ...]
    pools: tuple[PoolRow, ...]
    workers: tuple[WorkerRow, ...]  # those that need attention, then the most loaded
    num_workers: int
    keeps_timelines: bool
    recent: tuple[RecentRequest, ...]  # requests that ended, the latest first; empty without timelines


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """Facts about the router that do not depend on its models."""

    version: str
    process: int | None
    processes: int
    policy: str


def take_snapshot(
    facts: RouterFacts, models: Sequence[ServedModel], rows: Sequence[WorkerRow], timelines: Timelines | None = None
) -> ConsoleSnapshot:
    """Return the state of the models and their workers. `rows`: the workers. `timelines`: None: none are kept."""
    views = [model.pool.view for model in models]
    return ConsoleSnapshot(
        time_s=round(time.time(), 3),
        version=facts.version,
        process=facts.process,
        processes=facts.processes,
        policy=facts.policy,
        registry=models[0].pool.registry.name,
        registry_error=next((view.error for view in views if view.error), "")[:MAX_TEXT_CHARS],
        draining=any(model.admission.draining for model in models),
        span_s=SPAN_S,
        models=tuple(map(_model, models[:MAX_MODELS])),
        pools=tuple(pool_rows(rows)),
        workers=tuple(heapq.nlargest(MAX_WORKERS, rows, key=lambda row: row.load)),
        num_workers=len(rows),
        keeps_timelines=timelines is not None,
        recent=() if timelines is None else tuple(reversed(timelines.recent)),
    )


def _model(model: ServedModel) -> ModelRow:
    admission, recent, live = model.admission, model.metrics.recent, model.metrics.live
    targets, latest = recent.targets, model.plan.latest
    adapters = () if model.catalog is None else model.catalog.adapters
    return ModelRow(
        name=model.name,
        ready=model.is_ready(),
        waiting=admission.num_waiting + model.first_worker.num_waiting - model.first_worker.num_live,
        oldest_wait_s=round(admission.oldest_wait_s, 2),
        ttft_target_s=None if targets is None else targets.ttft_s,
        tpot_target_s=None if targets is None else targets.tpot_s,
        total=recent.total(),
        series=tuple(recent.series()),
        stages=stage_rows(live, time.monotonic()),
        errors=tuple(reversed(recent.errors)),
        plans=tuple(map(_plan, reversed(model.plan.decisions))),
        plan=None if latest is None else _plan(latest),
        adapters=adapter_rows(adapters, list(model.pool.connections)),
        num_adapters=len(adapters),
    )


def stage_rows(live: LiveCompletions, now_s: float) -> tuple[StageRow, ...]:
    """Return the stages. The time that it takes does not grow with the number of completions."""
    return tuple(
        StageRow(
            stage.value,
            live.count(stage),
            tuple(_request(each, now_s) for each in live.longest(stage, MAX_STAGE_REQUESTS)),
        )
        for stage in Stage
    )


def _request(live: LiveCompletion, now_s: float) -> RequestRow:
    plan = live.plan
    return RequestRow(
        id=live.request_id[:MAX_TEXT_CHARS],
        index=live.index,
        age_s=round(now_s - live.arrived_s, 2),
        ttft_s=None if live.ttft_s is None else round(live.ttft_s, 4),
        tokens=live.num_tokens,
        max_tokens=live.max_tokens,
        prompt_tokens=live.num_prompt_tokens,
        prefill="" if plan is None or plan.prefill is None else plan.prefill.worker_id[:MAX_TEXT_CHARS],
        decode="" if plan is None else plan.decode.worker_id[:MAX_TEXT_CHARS],
        attempts=live.num_attempts,
    )


def _plan(plan: PlanReport) -> PlanRow:
    return PlanRow(
        time_s=plan.time_s,
        prefill_target=plan.prefill.target,
        prefill_needed=plan.prefill.needed,
        decode_target=plan.decode.target,
        decode_needed=plan.decode.needed,
        reason=plan.reason[:MAX_REASON_CHARS],
    )
