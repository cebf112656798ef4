"""Axes and their ticks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

NUM_TICKS = 5
MIN_LOG_TICKS = 4
COARSE, FINE = (1.0, 2.0, 5.0), (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class Axis:
    """Axis from `low` to `high` with ticks; logarithmic if `is_log`."""

    low: float
    high: float
    ticks: Sequence[float]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return a value's position from 0 (`low`) to 1 (`high`), clamped."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def linear_axis(high: float) -> Axis:
    """Return an axis from 0 to a round number of at least `high`."""
    step = _step(high)
    count = max(1, math.ceil(high / step - 1e-9))
    return Axis(0.0, step * count, [step * number for number in range(count + 1)])


def tight_axis(high: float) -> Axis:
    """Return an axis from 0 to exactly `high`, which has a tick only if it is round."""
    step = _step(high)
    return Axis(0.0, high or 1.0, [step * number for number in range(math.floor(high / step + 1e-9) + 1)])


def _step(high: float) -> float:
    """Return a round distance between ticks."""
    rough = (high or 1.0) / NUM_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * each for each in STEPS if power * each >= rough * 0.999)


def log_axis(low: float, high: float) -> Axis:
    """Return an axis around two positive values, with ticks at powers of ten, their 1-2-5 multiples, or closer."""
    low, high = min(low, high / 1.5), max(high, low * 1.5)
    axis = _log_axis(low, high, COARSE)
    if len(axis.ticks) < MIN_LOG_TICKS:
        return _log_axis(low, high, FINE)
    if len(axis.ticks) > NUM_TICKS + 2:
        powers = [tick for tick in axis.ticks if math.isclose(math.log10(tick) % 1, 0, abs_tol=1e-9)]
        return Axis(axis.low, axis.high, powers, is_log=True)
    return axis


def _log_axis(low: float, high: float, digits: Sequence[float]) -> Axis:
    """Return an axis from a tick at or below `low` to a tick at or above `high`."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [digit * 10.0**power for power in powers for digit in digits]
    first = max(mark for mark in marks if mark <= low * 1.0001)
    last = min(mark for mark in marks if mark >= high * 0.9999)
    return Axis(first, last, [mark for mark in marks if first <= mark <= last], is_log=True)


def short(value: float) -> str:
    """Return a tick's label: 0.5, 20, 1.5k, 3M."""
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{letter}"
    return f"{value:.3g}"
