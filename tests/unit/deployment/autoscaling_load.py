"""The offered load, and the speed of each replica."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class Load:
    """Poisson arrivals with exponential lengths, as a function of time."""

    requests_per_s: Callable[[float], float]
    prompt_tokens: Callable[[float], float] = lambda _: 2000.0
    output_tokens: Callable[[float], float] = lambda _: 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A replica's actual speed; the workers report these rates times `reported_speed`."""

    tokens_per_s: float = 10_000.0
    prefill_step_s: float = 0.01
    decode_step_s: float = 0.01
    decode_sequence_s: float = 0.001
    max_num_seqs: int = 64
    kv_tokens: int = 400_000
    start_s: float = 30.0
    drain_s: float = 10.0
    reported_speed: float = 1.0
    cold_s: float = 0.0  # time after its start in which a replica takes ten times as long


@dataclass(slots=True)
class SimulatedRequest:
    """One request of the load."""

    arrived_s: float
    prompt_tokens: float
    output_tokens: float
    decode_from_s: float = 0.0
    left: float = 0.0
    joined_s: float | None = None  # when it joined a decode replica's batch

    @property
    def context(self) -> float:
        """Number of its tokens so far."""
        return self.prompt_tokens + self.output_tokens - self.left
