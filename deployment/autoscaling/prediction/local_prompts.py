"""Prompts that decode workers compute themselves, between the steps of their batches."""

from dataclasses import dataclass, field
from math import inf, sqrt

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.prediction.queueing import quantile_of, queue_wait


@dataclass(frozen=True, slots=True)
class LocalPrompts:
    """Share of the requests, and the time that their prompts take.

    A decode worker computes prompts in steps that also decode one token of every sequence. So prompts wait for those in
    front of them, and a sequence's tokens are late by the prompts that are computed during its output.
    """

    share: float = 0.0  # of the requests
    tokens: Moments = field(default_factory=Moments)  # uncached
    token_s: float = 0.0  # apart from the fixed time of a step
    max_step_tokens: int = 2048
    arrival_cv2: float = 1.0
    objective_s: float = inf  # of their time to first token

    def busy(self, num_replicas: float, requests_per_s: float) -> float:
        """Return the fraction of a worker's time that prompts take; 1 or more if they take all of it."""
        return self.share * requests_per_s * self.tokens.mean * self.token_s / num_replicas

    def ttft_s(self, num_replicas: int, requests_per_s: float, step_s: float, quantile: float) -> float:
        """Return a quantile of the time to the first token. `step_s`: of a step that decodes alone."""
        if self.share <= 0:
            return 0.0
        service = self.tokens.linear(step_s, self.token_s + step_s / self.max_step_tokens)
        wait = queue_wait(num_replicas, self.share * requests_per_s, service, self.arrival_cv2)
        if wait is None:
            return inf
        return quantile_of(wait.mean + service.mean, wait.variance + service.variance, quantile)

    def delay_deviation_s(self, num_replicas: float, requests_per_s: float, output_s: float) -> float:
        """Return the standard deviation of the delay of an output that takes `output_s`, by the prompts meanwhile.

        The prompts that arrive during the output are a compound Poisson process, whose variance is the mean square of a
        prompt's time for each of them (Campbell's theorem).
        """
        num_prompts = self.share * requests_per_s / num_replicas * output_s
        return sqrt(num_prompts * self.tokens.second) * self.token_s
