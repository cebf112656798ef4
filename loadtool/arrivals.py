"""Arrival processes of requests."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from baton.loadtool.errors import SettingError


@dataclass(frozen=True, slots=True)
class RequestRate:
    """Open loop at a rate. Gaps are gamma distributed with shape `burstiness`: 1 is a Poisson process, below is
    burstier, above more uniform. At an infinite rate all requests are sent at once.
    """

    per_s: float
    burstiness: float = 1.0

    def __post_init__(self) -> None:
        if not self.per_s > 0:
            raise SettingError(f"--request-rate {self.per_s:g}: must be above 0")
        if not 0 < self.burstiness < float("inf"):
            raise SettingError(f"--burstiness {self.burstiness:g}: must be above 0")

    @property
    def label(self) -> str:
        """Short description of the load."""
        return f"{self.per_s:g} req/s"

    def due_times(self, seed: int) -> Iterator[float]:
        """Yield send times in seconds from the start, without end. The first request follows a gap, too."""
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
    """Open loop at the trace's times, multiplied by `time_scale`."""

    time_scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.time_scale < float("inf"):
            raise SettingError(f"--time-scale {self.time_scale:g}: must be above 0")

    @property
    def label(self) -> str:
        """Short description of the load."""
        return "trace" if self.time_scale == 1 else f"trace x {self.time_scale:g}"


@dataclass(frozen=True, slots=True)
class MaxConcurrency:
    """Closed loop of clients that each send the next request when their previous one has ended."""

    num_clients: int

    def __post_init__(self) -> None:
        if self.num_clients < 1:
            raise SettingError(f"--max-concurrency {self.num_clients}: must be 1 or more")

    @property
    def label(self) -> str:
        """Short description of the load."""
        return f"{self.num_clients} concurrent"


Arrivals = RequestRate | TraceTimes | MaxConcurrency
