"""Planner of both pools' sizes.

The steps for one snapshot:

1. A snapshot without a valid clock or replica counts changes nothing.
2. After `idle_s` without requests both pools are emptied; the first request brings both back.
3. Replicas that fail to start are withdrawn, and the assumed number of GPUs is lowered for a while.
4. Each pool's needed sizes follow from its load by queueing theory, corrected by measured latencies. The load is
   measured since it last changed.
5. Within the budget each pool gets what it needs; otherwise the split with the most goodput is chosen.
6. A pool follows only changes that every snapshot during a delay asked for, and rarely changes direction.
7. The granted sizes, including starting and draining replicas, never exceed the budget; the rest waits.
"""

from dataclasses import replace

from baton.deployment.autoscaling.band import Band
from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.correction import Correction
from baton.deployment.autoscaling.decision import Decision, PoolDecision
from baton.deployment.autoscaling.following import followed
from baton.deployment.autoscaling.grants import Grants, grant
from baton.deployment.autoscaling.hysteresis import SizeState
from baton.deployment.autoscaling.input_check import (
    decode_fault,
    is_activity_known,
    prefill_fault,
    snapshot_fault,
)
from baton.deployment.autoscaling.need import Need, decode_need, prefill_need
from baton.deployment.autoscaling.prediction.pools_model import PoolsModel
from baton.deployment.autoscaling.prompt_split import LocalLimit, best_model, measured_share
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolsSnapshot, Traffic
from baton.deployment.autoscaling.start_trouble import StartWatch
from baton.deployment.autoscaling.state import ScalingState


def plan_pools(
    snapshot: PoolsSnapshot, state: ScalingState | None, settings: ScalingSettings
) -> tuple[Decision, ScalingState | None]:
    """Return the decision, and the state for the next call. `state` is None at first; settings must be checked."""
    fault = snapshot_fault(snapshot)
    if fault is not None:
        return _kept(state, settings, fault), state
    now_s = snapshot.now_s
    dt_s = max(0.0, now_s - state.updated_s) if state is not None else 0.0
    state = (state or ScalingState.of(snapshot)).at(now_s, settings.max_gap_s)
    faults = ByPool(prefill_fault(snapshot), decode_fault(snapshot))
    if snapshot.has_requests or not (is_activity_known(snapshot) or state.is_asleep):
        state = replace(state, active_s=now_s)
    if settings.idle_s is not None and state.idle_s(now_s) >= settings.idle_s:
        return _asleep(state, settings)
    budget = Budget(settings.budget_gpus, settings.limits)
    watch = StartWatch.of(snapshot, state.grants.sizes, budget, state.trouble, settings)
    believed = watch.trouble.believed(budget, now_s) if watch.trouble is not None else budget
    present = replace(state.grants, sizes=watch.granted)
    sizes = _present_sizes(state, present, budget)
    state, load = _with_load(snapshot, state, faults)
    model = _model(load, snapshot.traffic, state, faults, settings, believed)
    needs = _needs(load, snapshot.traffic, state, faults, sizes, settings, budget, model)
    has_jumped = state.history.has_jumped(now_s, snapshot.traffic)
    sizes, band = followed(sizes, needs, present, believed, snapshot, load.traffic.window_s, settings, has_jumped)
    grants = grant(sizes.map(lambda size: size.wanted), present, watch.arrived, snapshot, believed, settings)
    sizes = ByPool(
        sizes.prefill.given(present.sizes.prefill, grants.sizes.prefill, now_s),
        sizes.decode.given(present.sizes.decode, grants.sizes.decode, now_s),
    )
    following = replace(
        state,
        sizes=sizes,
        grants=grants,
        corrections=_corrected(snapshot, state, faults, needs, settings),
        local_limit=_local_limit(snapshot, state, dt_s),
        trouble=watch.trouble,
        local_share=state.local_share if model is None else model.local_share,
    )
    return _decision(state, following, needs, band, believed.gpus, load.traffic), following


def _present_sizes(state: ScalingState, present: Grants, budget: Budget) -> ByPool[SizeState]:
    """Return the wanted sizes without replicas that failed to start, and at least the minimum."""
    prefill, decode = state.sizes.both()
    if present.sizes.prefill < state.grants.sizes.prefill:
        prefill = prefill.lowered(present.sizes.prefill)
    if present.sizes.decode < state.grants.sizes.decode:
        decode = decode.lowered(present.sizes.decode)
    return ByPool(prefill.raised(budget.least.prefill), decode.raised(budget.least.decode))


def _with_load(
    snapshot: PoolsSnapshot, state: ScalingState, faults: ByPool[str | None]
) -> tuple[ScalingState, PoolsSnapshot]:
    """Return the state with this snapshot's traffic, and the snapshot with the load since it last changed."""
    if any(faults.both()):
        return state, snapshot
    state = replace(state, history=state.history.after(snapshot.now_s, snapshot.traffic))
    return state, replace(snapshot, traffic=state.history.load(snapshot.now_s, snapshot.traffic))


def _needs(
    snapshot: PoolsSnapshot,
    recent: Traffic,
    state: ScalingState,
    faults: ByPool[str | None],
    sizes: ByPool[SizeState],
    settings: ScalingSettings,
    budget: Budget,
    model: PoolsModel | None,
) -> ByPool[Need]:
    """Return what each pool needs; the wanted size for a pool with invalid measurements.

    `recent`: the traffic of the last window, in which outputs ended.
    """
    most, least, factors = budget.most, budget.least, state.corrections.map(lambda each: each.factor)
    if faults.prefill is None:
        prefill = prefill_need(snapshot, settings, factors.prefill, most.prefill, model.prefill if model else None)
        prefill = prefill.within(least.prefill, most.prefill)
    else:
        prefill = Need.unknown(sizes.prefill.wanted, faults.prefill, factors.prefill)
    if faults.decode is None:
        decode = decode_need(
            snapshot,
            settings,
            factors.decode,
            most.decode,
            prefill.prompt_token_s,
            model.decode if model else None,
            recent,
        )
        decode = decode.within(least.decode, most.decode)
    else:
        decode = Need.unknown(sizes.decode.wanted, faults.decode, factors.decode)
    return ByPool(prefill, decode)


def _model(
    snapshot: PoolsSnapshot,
    recent: Traffic,
    state: ScalingState,
    faults: ByPool[str | None],
    settings: ScalingSettings,
    budget: Budget,
) -> PoolsModel | None:
    """Return the model for the best share of local prompts; None if a pool's measurements are invalid.

    `recent`: the traffic of the last window, in which the local prompts were measured.
    """
    if any(faults.both()):
        return None
    factors = state.corrections.map(lambda each: each.factor)
    return best_model(
        lambda share: PoolsModel.of(snapshot, settings, factors, share),
        state.local_share,
        state.local_limit.most(recent),
        snapshot.traffic.requests_per_s,
        budget,
    )


def _corrected(
    snapshot: PoolsSnapshot,
    state: ScalingState,
    faults: ByPool[str | None],
    needs: ByPool[Need],
    settings: ScalingSettings,
) -> ByPool[Correction]:
    """Return the corrections for the next snapshot, from the models' predictions for the current sizes."""
    rate, window_s, now_s = snapshot.traffic.requests_per_s, snapshot.traffic.window_s, snapshot.now_s
    factors = state.corrections.map(lambda each: each.factor)

    def ttft_s(factor: float) -> float:
        model = PoolsModel.as_measured(snapshot, settings, replace(factors, prefill=factor))
        return model.prefill.predicted_s(snapshot.prefill.pool.num_ready, rate)

    def tpot_s(factor: float) -> float:
        model = PoolsModel.as_measured(snapshot, settings, replace(factors, decode=factor))
        return model.decode.predicted_s(snapshot.decode.pool.num_ready, rate)

    # While requests wait for a decode slot, TTFT is late whatever the prefill pool does, and decode batches are full of
    # earlier requests whatever the current rate is. Neither says anything about the models.
    num_ready = snapshot.pools.map(lambda pool: pool.num_ready)
    if any(faults.both()) or not all(num_ready.both()) or snapshot.decode.num_waiting:
        return state.corrections.map(lambda each: each.unknown(num_ready, now_s))
    present = PoolsModel.as_measured(snapshot, settings, factors)
    prefill, decode = state.corrections.both()
    ttfts, tpots = snapshot.pools.map(lambda pool: pool.latencies).both()
    has_prefill, has_decode = needs.zip(num_ready).map(lambda pair: pair[0].least <= pair[1]).both()
    return ByPool(
        prefill.after(ttfts, num_ready, ttft_s, present.prefill.ttft_s, has_prefill, now_s, window_s, settings),
        decode.after(tpots, num_ready, tpot_s, present.decode.tpot_s, has_decode, now_s, window_s, settings),
    )


def _local_limit(snapshot: PoolsSnapshot, state: ScalingState, dt_s: float) -> LocalLimit:
    """Return the limit of local prompts: late first tokens mean that the router hands over more than planned."""
    measured = measured_share(snapshot.traffic)
    is_late = state.corrections.prefill.is_broken(snapshot.now_s) and state.local_share > measured
    return state.local_limit.after(measured, is_late, dt_s)


def _kept(state: ScalingState | None, settings: ScalingSettings, fault: str) -> Decision:
    """Return the previous sizes, or the minimum if there are none."""
    grants = Grants(settings.limits.map(lambda limits: limits.min_replicas)) if state is None else state.grants
    factors = ByPool(1.0, 1.0) if state is None else state.corrections.map(lambda each: each.factor)
    kept = grants.sizes.zip(factors).map(
        lambda pool: PoolDecision(pool[0], pool[0], pool[0], pool[1], f"stays {pool[0]}: {fault}")
    )
    return Decision(
        kept.prefill, kept.decode, settings.budget_gpus, grants.flips, 0.0 if state is None else state.local_share
    )


def _asleep(state: ScalingState, settings: ScalingSettings) -> tuple[Decision, ScalingState]:
    """Empty both pools: neither can serve without the other."""
    reason = f"no request for {settings.idle_s:g} s"
    nothing = state.corrections.map(lambda each: PoolDecision(0, 0, 0, each.factor, reason))
    sizes = ByPool(SizeState(0), SizeState(0))
    return Decision(nothing.prefill, nothing.decode, settings.budget_gpus), replace(
        state, sizes=sizes, grants=Grants(ByPool(0, 0))
    )


def _decision(
    before: ScalingState,
    after: ScalingState,
    needs: ByPool[Need],
    band: ByPool[Band],
    believed_gpus: int,
    load: Traffic,
) -> Decision:
    parts = zip(
        before.grants.sizes.both(),
        after.grants.sizes.both(),
        before.sizes.both(),
        after.sizes.both(),
        needs.both(),
        band.both(),
        strict=True,
    )
    prefill, decode = [
        PoolDecision.of(old, new, former, size, need, each, after.updated_s)
        for old, new, former, size, need, each in parts
    ]
    return Decision(prefill, decode, believed_gpus, after.grants.flips, after.local_share, load)
