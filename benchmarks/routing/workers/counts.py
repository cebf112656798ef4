"""Counts of a simulated engine, as its process reports them."""

from dataclasses import dataclass, replace
from typing import Self

from baton.simulation.engine.counters import EngineCounters


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """Counts of a simulated engine."""

    requests: int
    busy_s: float
    prefilled_tokens: int
    generated_tokens: int
    max_lag_s: float  # maximum delay of its process

    @classmethod
    def of(cls, counters: EngineCounters) -> Self:
        """Make it from an engine's counters."""
        return cls(
            counters.requests, counters.busy_s, counters.prefilled_tokens, counters.generated_tokens, counters.max_lag_s
        )

    def since(self, start: Self) -> Self:
        """Return the difference to `start`."""
        return replace(
            self,
            requests=self.requests - start.requests,
            busy_s=self.busy_s - start.busy_s,
            prefilled_tokens=self.prefilled_tokens - start.prefilled_tokens,
            generated_tokens=self.generated_tokens - start.generated_tokens,
        )
