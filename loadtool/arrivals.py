"""When requests are sent."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from baton.loadtool.errors import SettingError


@dataclass(frozen=True, slots=True)
class RequestRate:
    """An open loop at a rate: gaps between requests are gamma distributed with `burstiness` as their shape, which is a
    Poisson process at 1, more bursty below and more even above. At an infinite rate all come at once.
    """

    per_s: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not self.per_s > 0:
            raise SettingError(f"--request-rate {self.per_s:g}: it must be above 0")
        if not 0 < self.burstiness < float("inf"):
            raise SettingError(f"--burstiness {self.burstiness:g}: it must be above 0")

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.per_s:g} req/s"

    def due_times(self, seed: int) -> Iterator[float]:
        """Seconds from the start, endless; the first comes after a gap as well."""
        if self.per_s == float("inf"):
            yield from repeat(0.0)
        rng = np.random.default_rng((seed, 1))
        due_s = 0.0
        while True:
            for gap in rng.gamma(self.burstiness, 1 / (self.per_s * self.burstiness), size=1024).tolist():
                due_s += gap
                yield due_s


@dataclass(frozen=True, slots=True)
class TraceTimes:
    """An open loop at the trace's own times, multiplied by the scale."""

    time_scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.time_scale < float("inf"):
            raise SettingError(f"--time-scale {self.time_scale:g}: it must be above 0")

    @property
    def label(self) -> str:
        """For people."""
        return "trace" if self.time_scale == 1 else f"trace x {self.time_scale:g}"


@dataclass(frozen=True, slots=True)
class MaxConcurrency:
    """A closed loop: so many clients, each of which asks again when its answer has ended."""

    num_clients: int

    def __post_init__(self) -> None:
        if self.num_clients < 1:
            raise SettingError(f"--max-concurrency {self.num_clients}: it must be 1 or more")

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.num_clients} at once"


Arrivals = RequestRate | TraceTimes | MaxConcurrency
