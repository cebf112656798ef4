"""Time to the first token, as a function of the number of prefill replicas."""

from dataclasses import dataclass
from math import inf, sqrt

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.pool_model import UNREACHABLE_SLACK
from baton.deployment.autoscaling.queueing import quantile_of, queue_wait
from baton.deployment.autoscaling.settings import SLO
from baton.deployment.autoscaling.snapshot import PrefillSnapshot, Traffic

NUM_HALVINGS = 16  # of the interval in which a rate is looked for


@dataclass(frozen=True, slots=True)
class PrefillModel:
    """A queue in order of arrival before replicas that compute one prompt after the other.

    TTFT = wait + computation + handover. Replicas really compute several prompts in a step; a prompt's tokens still
    wait for all tokens that came before them, and the steps' fixed time is shared by as many tokens as a step takes.
    Rates are those of all requests, of which a share comes here; decode workers compute the prompts of the others.
    """

    service: Moments  # seconds of a prompt's computation
    arrival_cv2: float
    handover_s: float
    ttft_s: float  # that has to be kept
    quantile: float
    share: float = 1.0  # of the requests, that come here

    @classmethod
    def of(cls, traffic: Traffic, prefill: PrefillSnapshot, slo: SLO, factor: float) -> "PrefillModel":
        """From measured rates; `factor` makes each computation so much longer, as measured TTFT demands."""
        # Where no replica is ready all prompts are computed by decode workers, whoever should.
        remote = traffic.remote_tokens if prefill.pool.num_ready else None
        share = traffic.remote_share if remote is not None else 1.0
        tokens = remote or traffic.uncached_tokens
        service = tokens.linear(factor * prefill.step_s, factor * seconds_per_token(prefill))
        best_s = quantile_of(service.mean, service.variance, slo.quantile) + prefill.handover_s
        ttft_s = max(slo.ttft_s, UNREACHABLE_SLACK * best_s)
        return cls(service, traffic.arrival_cv2, prefill.handover_s, ttft_s, slo.quantile, share)

    def predicted_s(self, num_replicas: int, requests_per_s: float) -> float:
        """TTFT's quantile; infinite where the queue grows without end."""
        wait = queue_wait(num_replicas, self.share * requests_per_s, self.service, self.arrival_cv2)
        if wait is None:
            return inf
        mean, variance = wait.mean + self.service.mean, wait.variance + self.service.variance
        return quantile_of(mean, variance, self.quantile) + self.handover_s

    def holds(self, num_replicas: int, requests_per_s: float) -> bool:
        """Whether TTFT is kept."""
        return self.predicted_s(num_replicas, requests_per_s) <= self.ttft_s

    def rate(self, num_replicas: int) -> float:
        """The most requests per second, by halving."""
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
        """Of a request on the average: its prompt's tokens, times the seconds until its first token.

        A long prompt waits no longer than others, but is computed for longer: E[P * S] is at most the root of
        E[P^2] * E[S^2] (Cauchy and Schwarz), and just that if as large a share of each prompt is cached. A pool that
        cannot keep TTFT is taken to do so: what waits for prefill beyond that is nothing that decode could mend.
        """
        wait = queue_wait(num_replicas, self.share * requests_per_s, self.service, self.arrival_cv2)
        wait_s = min(wait.mean, self.ttft_s) if wait is not None else self.ttft_s
        return prompt.mean * (wait_s + self.handover_s) + sqrt(prompt.second * self.service.second)


def seconds_per_token(prefill: PrefillSnapshot) -> float:
    """Of a replica whose steps are full."""
    return 1 / prefill.tokens_per_s + prefill.step_s / prefill.max_step_tokens
