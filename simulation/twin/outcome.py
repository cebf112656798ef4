"""What a simulated deployment did."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from baton.deployment.autoscaling.settings import SLO
from baton.loadtool.summary import Distribution, distribution
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.gpu_meter import Sizes
from baton.simulation.twin.record import Record


@dataclass(frozen=True, slots=True)
class Outcome:
    """All requests of a run, and what they cost."""

    plan: DeploymentPlan
    records: Sequence[Record]  # in the order of the trace
    sizes: Sequence[Sizes]
    gpu_hours: float
    most_gpus: int
    ended_s: float  # last token of all
    num_preemptions: int
    num_events: int
    cpu_s: float  # what the simulation itself took, on one core
    decisions: Sequence[str] = ()  # of the autoscaler, in words

    @property
    def answered(self) -> list[Record]:
        """Requests that got all their tokens."""
        return [record for record in self.records if record.refusal is None]

    def num_good(self, slo: SLO) -> int:
        """Answered within both times."""
        return sum(record.is_good(slo) for record in self.records)

    def goodput(self, slo: SLO) -> float:
        """Good requests a second, over the time in which requests came."""
        return self.num_good(slo) / max(self.seconds, 1e-9)

    @property
    def seconds(self) -> float:
        """From the trace's start to its last request; of a single one, to its end."""
        return self.records[-1].due_s or self.ended_s

    @property
    def ttft_ms(self) -> Distribution | None:
        """Of answered requests."""
        return distribution(record.ttft_s for record in self.answered)

    @property
    def tpot_ms(self) -> Distribution | None:
        """Of answered requests with more than one token."""
        return distribution(record.tpot_s for record in self.answered if record.num_output_tokens > 1)

    @property
    def cached_share(self) -> float:
        """Of the prompts' tokens, what nobody had to compute."""
        answered = self.answered
        num_tokens = sum(record.num_prompt_tokens for record in answered)
        return sum(record.num_cached_tokens for record in answered) / num_tokens if num_tokens else 0.0

    @property
    def remote_share(self) -> float:
        """Of the answered requests, those whose prompt was handed over."""
        answered = self.answered
        return sum(record.is_remote for record in answered) / len(answered) if answered else 0.0

    def median_excess(self, slo: SLO) -> float:
        """How the median request stands to what is promised: 1 is just kept."""
        return median_of(max(record.ttft_s / slo.ttft_s, record.tpot_s / slo.tpot_s) for record in self.answered)


def median_of(values: Iterable[float]) -> float:
    """The middle one; infinite if there are none."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else float("inf")
