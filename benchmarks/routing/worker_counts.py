"""What a simulated engine did, as its process tells it."""

from dataclasses import dataclass, replace
from typing import Self

from baton.simulation.engine.counters import EngineCounters


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """What a simulated engine did."""

    requests: int
    busy_s: float
    prefilled_tokens: int
    generated_tokens: int
    max_lag_s: float  # by which its process was late

    @classmethod
    def of(cls, counters: EngineCounters) -> Self:
        """What an engine's own counters say."""
        return cls(
            counters.requests, counters.busy_s, counters.prefilled_tokens, counters.generated_tokens, counters.max_lag_s
        )

    def since(self, start: Self) -> Self:
        """What was done after `start`."""
        return replace(
            self,
            requests=self.requests - start.requests,
            busy_s=self.busy_s - start.busy_s,
            prefilled_tokens=self.prefilled_tokens - start.prefilled_tokens,
            generated_tokens=self.generated_tokens - start.generated_tokens,
        )
