"""Sizes that follow the needs, within the budget and rarely in the other direction."""

from baton.deployment.autoscaling.band import Band, bands, sharing, unhurried
from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.grants import Grants
from baton.deployment.autoscaling.hysteresis import SizeState
from baton.deployment.autoscaling.input_check import known
from baton.deployment.autoscaling.need import Need
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolsSnapshot
from baton.deployment.autoscaling.split import fit, sure_split


def followed(
    sizes: ByPool[SizeState],
    needs: ByPool[Need],
    grants: Grants,
    budget: Budget,
    snapshot: PoolsSnapshot,
    load_s: float,
    settings: ScalingSettings,
    has_jumped: bool,
) -> tuple[ByPool[SizeState], ByPool[Band]]:
    """Return the size states after this snapshot, and the bands that they follow.

    A jump of the arrivals is not chance, and no single prompt: if there are enough GPUs, pools may turn at once.
    `load_s`: the time over which the load was averaged, in which a single prompt counts.
    """
    now_s, window_s = snapshot.now_s, known(snapshot.traffic.window_s, 0.0)
    wanted = sizes.map(lambda size: size.wanted)
    least = fit(needs.map(lambda need: need.model), needs.map(lambda need: need.least), wanted, budget, settings.margin)
    # If GPUs are missing, a new split is not due to chance in the load, so it need not last for a window.
    lasting_s = window_s if budget.gpus == settings.budget_gpus else 0.0
    band = _bands(least, needs, wanted, budget, lasting_s, settings)
    has_enough = budget.cost(needs.map(lambda need: need.least)) <= budget.gpus
    may_turn = all(size.may_turn(now_s, settings.turn_s) for size in sizes.both())
    have_settled = may_turn or (has_jumped and has_enough)
    sure_s = max(window_s, known(load_s, 0.0)) if has_enough else window_s
    sure_band = band if have_settled else _sure_bands(needs, wanted, budget, sure_s, settings)
    is_shift = band.prefill.is_pressed or band.decode.is_pressed
    changes = sizes.zip(least.zip(grants.sizes)).both()
    if is_shift and not all(size.may_become(*change, now_s, settings.turn_s) for size, change in changes):
        band = sure_band  # one pool need not give up what the other may not take yet
    # A wanted size that was never granted is lowered as soon as it is not needed, because no replica has to stop.
    given = grants.sizes.zip(band.map(lambda each: each.least)).map(max)
    prefill = sizes.prefill.lowered(given.prefill).after(band.prefill, sure_band.prefill, now_s, settings)
    decode = sizes.decode.lowered(given.decode).after(band.decode, sure_band.decode, now_s, settings)
    return ByPool(prefill, decode), band


def _bands(
    least: ByPool[int],
    needs: ByPool[Need],
    wanted: ByPool[int],
    budget: Budget,
    lasting_s: float,
    settings: ScalingSettings,
) -> ByPool[Band]:
    """Return the bands of pools that may change direction."""
    band = bands(least, needs.map(lambda need: need.keep), wanted, budget, settings)
    return ByPool(
        sharing(band.prefill, needs.prefill.least, wanted.prefill, lasting_s),
        sharing(band.decode, needs.decode.least, wanted.decode, lasting_s),
    )


def _sure_bands(
    needs: ByPool[Need], wanted: ByPool[int], budget: Budget, window_s: float, settings: ScalingSettings
) -> ByPool[Band]:
    """Return the bands of pools that changed direction recently: only a queue overrides the wait for a whole window.

    If the budget is too small for both pools, both have queues, which then do not help to choose a split.
    """
    band = bands(sure_split(needs, wanted, budget), needs.map(lambda need: need.keep), wanted, budget, settings)
    has_enough = budget.cost(needs.map(lambda need: need.least)) <= budget.gpus
    prefill, decode = needs.zip(wanted).map(lambda pair: has_enough and pair[0].queue > pair[1]).both()
    return ByPool(
        unhurried(band.prefill, window_s, grow=not prefill, shrink=not decode),
        unhurried(band.decode, window_s, grow=not decode, shrink=not prefill),
    )
