"""The results of a simulated deployment."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from baton.deployment.autoscaling.settings import SLO
from baton.loadtool.summary import Distribution, distribution
from baton.simulation.twin.deployment_plan import DeploymentPlan
from baton.simulation.twin.gpu_meter import Sizes
from baton.simulation.twin.record import Record


@dataclass(frozen=True, slots=True)
class Outcome:
    """The records of all requests of a run, and its costs."""

    plan: DeploymentPlan
    records: Sequence[Record]  # in the order of the trace
    sizes: Sequence[Sizes]
    gpu_hours: float
    most_gpus: int
    ended_s: float  # time of the last token
    num_preemptions: int
    num_events: int
    cpu_s: float  # CPU time of the simulation
    decisions: Sequence[str] = ()  # the autoscaler's, as text

    @property
    def answered(self) -> list[Record]:
        """Records of the requests that got all their tokens."""
        return [record for record in self.records if record.refusal is None]

    def num_good(self, slo: SLO) -> int:
        """Return the number of requests within the SLO."""
        return sum(record.is_good(slo) for record in self.records)

    def goodput(self, slo: SLO) -> float:
        """Return the requests per second within the SLO, over the time in which requests arrived."""
        return self.num_good(slo) / max(self.seconds, 1e-9)

    @property
    def seconds(self) -> float:
        """Seconds from the trace's start to its last request, or to the end if all arrive at the start."""
        return self.records[-1].due_s or self.ended_s

    @property
    def ttft_ms(self) -> Distribution | None:
        """TTFT of the answered requests."""
        return distribution(record.ttft_s for record in self.answered)

    @property
    def tpot_ms(self) -> Distribution | None:
        """TPOT of the answered requests with more than one token."""
        return distribution(record.tpot_s for record in self.answered if record.num_output_tokens > 1)

    @property
    def cached_share(self) -> float:
        """Share of the prompts' tokens that were cached."""
        answered = self.answered
        num_tokens = sum(record.num_prompt_tokens for record in answered)
        return sum(record.num_cached_tokens for record in answered) / num_tokens if num_tokens else 0.0

    @property
    def remote_share(self) -> float:
        """Share of the answered requests whose prompt was handed over."""
        answered = self.answered
        return sum(record.is_remote for record in answered) / len(answered) if answered else 0.0

    def median_excess(self, slo: SLO) -> float:
        """Return the median over requests of the larger ratio of TTFT and TPOT to the SLO; 1 just meets it."""
        return median_of(max(record.ttft_s / slo.ttft_s, record.tpot_s / slo.tpot_s) for record in self.answered)


def median_of(values: Iterable[float]) -> float:
    """Return the upper median; infinite without values."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2] if ordered else float("inf")
