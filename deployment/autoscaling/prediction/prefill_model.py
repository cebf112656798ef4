"""Queueing model of the prefill pool: TTFT as a function of its size."""

from dataclasses import dataclass
from math import inf, sqrt

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.prediction.pool_model import UNREACHABLE_SLACK
from baton.deployment.autoscaling.prediction.queueing import quantile_of, queue_wait
from baton.deployment.autoscaling.settings import SLO
from baton.deployment.autoscaling.snapshot import PrefillSnapshot, Traffic

NUM_HALVINGS = 16  # bisection steps of the search for a rate


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """FIFO queue in front of replicas that prefill one prompt at a time.

    TTFT = wait + prefill + handover. Real replicas prefill several prompts in a step, but a prompt's tokens still wait
    for all earlier tokens, and the fixed time of a step is spread over its tokens. Rates are of all requests; the
    pool prefills a `share` of them, and decode workers the others.
    """

    service: Moments  # prefill seconds of a prompt
    arrival_cv2: float
    handover_s: float
    ttft_s: float  # objective
    quantile: float
    share: float = 1.0  # part of the requests that is prefilled here

    @classmethod
    def of(
        cls,
        traffic: Traffic,
        prefill: PrefillSnapshot,
        slo: SLO,
        factor: float,
        share: float = 1.0,
        tokens: Moments | None = None,
    ) -> "PrefillModel":
        """Make the model from measured rates.

        `factor` is the correction of prefill times by measured TTFT. `share`: of the requests, that are prefilled here,
        and their uncached `tokens`; None: those of all requests.
        """
        service = (tokens or traffic.uncached_tokens).linear(
            factor * prefill.step_s, factor * seconds_per_token(prefill)
        )
        best_s = quantile_of(service.mean, service.variance, slo.quantile) + prefill.handover_s
        ttft_s = max(slo.ttft_s, UNREACHABLE_SLACK * best_s)
        return cls(service, traffic.arrival_cv2, prefill.handover_s, ttft_s, slo.quantile, share)

    def predicted_s(self, num_replicas: int, requests_per_s: float) -> float:
        """Return the SLO quantile of TTFT; infinite if the queue is unstable."""
        wait = queue_wait(num_replicas, self.share * requests_per_s, self.service, self.arrival_cv2)
        if wait is None:
            return inf
        mean, variance = wait.mean + self.service.mean, wait.variance + self.service.variance
        return quantile_of(mean, variance, self.quantile) + self.handover_s

    def holds(self, num_replicas: int, requests_per_s: float) -> bool:
        """Whether the SLO quantile of TTFT is within its limit."""
        return self.predicted_s(num_replicas, requests_per_s) <= self.ttft_s

    def rate(self, num_replicas: int) -> float:
        """Return the highest request rate at which it holds, by bisection."""
        if num_replicas < 1:
            return 0.0
        if self.share * self.service.mean <= 0:
            return inf
        low, high = 0.0, num_replicas / (self.share * self.service.mean)
        for _ in range(NUM_HALVINGS):
            middle = (low + high) / 2
            if self.holds(num_replicas, middle):
                low = middle
            else:
                high = middle
        return low

    def prompt_token_s(self, prompt: Moments, num_replicas: int, requests_per_s: float) -> float:
        """Return the mean of a request's prompt tokens times the seconds until its first token.

        A long prompt waits no longer than others, but its prefill takes longer: E[P * S] is at most the root of
        E[P^2] * E[S^2] (Cauchy-Schwarz), with equality if the same fraction of each prompt is cached. The wait is
        capped at the TTFT objective, because decode capacity cannot help an overloaded prefill pool.
        """
        wait = queue_wait(num_replicas, self.share * requests_per_s, self.service, self.arrival_cv2)
        wait_s = min(wait.mean, self.ttft_s) if wait is not None else self.ttft_s
        return prompt.mean * (wait_s + self.handover_s) + sqrt(prompt.second * self.service.second)


def seconds_per_token(prefill: PrefillSnapshot) -> float:
    """Return the prefill seconds per token of a replica with full steps."""
    return 1 / prefill.tokens_per_s + prefill.step_s / prefill.max_step_tokens
