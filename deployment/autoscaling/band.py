"""Range of acceptable sizes of a pool."""

from dataclasses import dataclass, replace

from baton.deployment.autoscaling.budget import Budget
from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.settings import ScalingSettings


@dataclass(frozen=True, slots=True)
class Band:
    """Acceptable sizes: a pool smaller than `least` grows, one larger than `most` shrinks, after the delays."""

    least: int
    most: int
    shrink_delay_s: float
    grow_delay_s: float
    is_pressed: bool = False  # the other pool needs the GPUs


def bands(
    least: ByPool[int], keep: ByPool[int], wanted: ByPool[int], budget: Budget, settings: ScalingSettings
) -> ByPool[Band]:
    """Return both pools' bands. A pool keeps its size with a margin, or less if the other pool needs the GPUs.

    `least` must be within the budget.
    """
    held = least.zip(wanted).map(max)
    is_short = budget.cost(held) > budget.gpus
    room = budget.largest(least)
    return ByPool(
        _band(least.prefill, keep.prefill, wanted.prefill, room.prefill if is_short else None, settings),
        _band(least.decode, keep.decode, wanted.decode, room.decode if is_short else None, settings),
    )


def unhurried(band: Band, window_s: float, *, grow: bool, shrink: bool) -> Band:
    """Return the band with one measurement window added to the delays of growing, shrinking or both.

    A single prompt of exceptional length stays in the measurements for a whole window.
    """
    return replace(
        band,
        grow_delay_s=band.grow_delay_s + (window_s if grow else 0.0),
        shrink_delay_s=band.shrink_delay_s + (window_s if shrink else 0.0),
    )


def sharing(band: Band, need: int, wanted: int, window_s: float) -> Band:
    """Return the band of a pool that may give up GPUs: unneeded ones at once, needed ones only after a window more."""
    if band.most >= need:
        return band
    if wanted > need:
        return replace(band, most=need)
    return unhurried(band, window_s, grow=False, shrink=True)


def _band(least: int, keep: int, wanted: int, room: int | None, settings: ScalingSettings) -> Band:
    if room is not None and wanted > room:
        return Band(least, max(least, room), settings.shift_delay_s, settings.upscale_delay_s, is_pressed=True)
    return Band(least, max(least, keep), settings.downscale_delay_s, settings.upscale_delay_s)
