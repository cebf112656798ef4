"""Queueing model of the decode pool: TPOT and KV use as a function of its size."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, sqrt

from baton.deployment.autoscaling.prediction.kv_demand import KVDemand
from baton.deployment.autoscaling.prediction.local_prompts import LocalPrompts
from baton.deployment.autoscaling.prediction.pool_model import UNREACHABLE_SLACK
from baton.deployment.autoscaling.prediction.queueing import normal_quantile
from baton.deployment.autoscaling.settings import SLO, ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, Traffic

NUM_HALVINGS = 24  # bisection steps of the search for a rate
NO_PROMPTS = LocalPrompts()


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """Sequences stay for one step per output token; a step takes longer the larger the batch.

    The batch size has the mean of Little's law (1961) and nearly Poisson variance, times the peakedness of the
    arrivals, (1 + ca2) / 2 for exponential stays (Whitt, Heavy-traffic approximations for service systems with
    blocking, 1984). A pool therefore needs slots for the mean plus as many standard deviations as the SLO's quantile
    requires, as in square-root staffing (Halfin and Whitt, 1981); and KV for the same quantile of held tokens, which
    sequences hold for longer than they decode.
    """

    num_output_tokens: float
    step_s: float  # with one sequence
    sequence_s: float  # added by each further sequence
    places: int  # sequences per replica within the TPOT objective
    capacity: int  # sequences per replica by max_num_seqs and KV
    kv: KVDemand
    peakedness: float
    deviations: float  # standard deviations of the SLO's quantile
    slo: SLO
    prompts: LocalPrompts

    @classmethod
    def of(
        cls,
        traffic: Traffic,
        decode: DecodeSnapshot,
        settings: ScalingSettings,
        factor: float,
        prompt_token_s: float = 0.0,
        prompts: LocalPrompts = NO_PROMPTS,
    ) -> "DecodeModel":
        """Make the model from measured rates.

        `factor` is the correction of step times by measured TPOT. `prompt_token_s` is a sequence's prompt tokens times
        the seconds until its first token. `prompts` are computed by the pool itself.
        """
        kv = KVDemand.of(traffic, decode, settings, prompt_token_s)
        step_s, sequence_s = factor * decode.step_s, factor * decode.sequence_s
        capacity = max(1, int(min(decode.max_num_seqs, kv.num_sequences)))
        return cls(
            num_output_tokens=traffic.output_tokens.mean,
            step_s=step_s,
            sequence_s=sequence_s,
            places=min(capacity, num_within(settings.slo.tpot_s, step_s, sequence_s, capacity)),
            capacity=capacity,
            kv=kv,
            peakedness=(1 + traffic.arrival_cv2) / 2,
            deviations=normal_quantile(settings.slo.quantile),
            slo=settings.slo,
            prompts=prompts,
        )

    @property
    def tpot_s(self) -> float:
        """The objective; slightly more than the shortest step, if that is longer."""
        return max(self.slo.tpot_s, UNREACHABLE_SLACK * self.step_s)

    def step_time_s(self, num_sequences: float) -> float:
        """Return the seconds of a step with this batch size that computes no prompt."""
        return self.step_s + self.sequence_s * max(0.0, num_sequences - 1)

    def mean_sequences(self, num_replicas: float, requests_per_s: float) -> float:
        """Return the mean batch size of a replica, by Little's law with a stay that depends on the batch size.

        Solves x = r * (step_s + sequence_s * (x - 1)) for r tokens per second of the time that prompts leave, and
        replica; infinite if no batch size can produce r.
        """
        left = 1 - self.prompts.busy(num_replicas, requests_per_s)
        if left <= 0:
            return inf
        tokens_per_s = requests_per_s * self.num_output_tokens / num_replicas / left
        if tokens_per_s * self.step_s <= 1:
            return tokens_per_s * self.step_s
        room = 1 - tokens_per_s * self.sequence_s
        if room <= 0:
            return inf
        return tokens_per_s * max(0.0, self.step_s - self.sequence_s) / room

    def most_sequences(self, num_replicas: int, requests_per_s: float) -> float:
        """Return the SLO quantile of a replica's batch size, assuming that the router balances the pool."""
        mean = self.mean_sequences(num_replicas, requests_per_s)
        return mean + self.deviations * sqrt(mean * self.peakedness / num_replicas)

    def predicted_s(self, num_replicas: int, requests_per_s: float) -> float:
        """Return the SLO quantile of TPOT. A full replica queues further sequences, so its step time is bounded."""
        return self._tpot_s(
            min(self.capacity, self.most_sequences(num_replicas, requests_per_s)), num_replicas, requests_per_s
        )

    def holds(self, num_replicas: int, requests_per_s: float) -> bool:
        """Whether the SLO quantiles of TPOT, of the held KV, and of the TTFT of the pool's own prompts fit."""
        most = self.most_sequences(num_replicas, requests_per_s)
        if most > self.places or not self._holds_kv(num_replicas, requests_per_s, self.deviations):
            return False
        if not self.prompts.share:
            return True
        if self._tpot_s(most, num_replicas, requests_per_s) > self.tpot_s:
            return False
        step_s = self.step_time_s(self.mean_sequences(num_replicas, requests_per_s))
        return self.prompts.ttft_s(num_replicas, requests_per_s, step_s, self.slo.quantile) <= self.prompts.objective_s

    def rate(self, num_replicas: int) -> float:
        """Return the highest request rate that holds: Little's law with room for the deviations."""
        if num_replicas < 1:
            return 0.0
        spread = self.deviations * sqrt(self.peakedness / num_replicas)
        root = (sqrt(spread * spread + 4 * self.places) - spread) / 2
        return self._highest(self._little(root * root, num_replicas), lambda rate: self.holds(num_replicas, rate))

    def full_rate(self, num_replicas: float) -> float:
        """Return the throughput in requests per second of a pool whose slots or KV are all in use."""
        most = self._little(self.places, num_replicas)
        return self._highest(most, lambda rate: self._holds_kv(num_replicas, rate, 0.0))

    def _tpot_s(self, num_sequences: float, num_replicas: int, requests_per_s: float) -> float:
        """Return the SLO quantile of TPOT at this batch size."""
        left = 1 - self.prompts.busy(num_replicas, requests_per_s)
        if left <= 0:
            return inf
        token_s = self.step_time_s(num_sequences) / left
        if not self.prompts.share or not self.num_output_tokens:
            return token_s
        output_s = self.num_output_tokens * token_s
        late_s = self.prompts.delay_deviation_s(num_replicas, requests_per_s, output_s) / self.num_output_tokens
        return token_s + self.deviations * late_s

    def _little(self, num_sequences: float, num_replicas: float) -> float:
        """Return the request rate at which each replica has this batch size on average."""
        stay_s = self.num_output_tokens * self.step_time_s(num_sequences) + num_sequences * self.prompts.busy(1, 1)
        return num_replicas * num_sequences / stay_s if stay_s > 0 else inf

    def _highest(self, most: float, holds: Callable[[float], bool]) -> float:
        """Return the rate, reduced by bisection to what holds."""
        if most == inf or holds(most):
            return most
        low, high = 0.0, most
        for _ in range(NUM_HALVINGS):
            middle = (low + high) / 2
            if holds(middle):
                low = middle
            else:
                high = middle
        return low

    def _holds_kv(self, num_replicas: float, requests_per_s: float, deviations: float) -> bool:
        if self.kv.tokens == inf:
            return True
        num_decoding = self.mean_sequences(num_replicas, requests_per_s)
        mean = self.kv.mean_tokens(num_decoding, requests_per_s / num_replicas)
        return self.kv.most_tokens(mean, deviations, self.peakedness, num_replicas) <= self.kv.tokens


def num_within(tpot_s: float, step_s: float, sequence_s: float, most: int) -> int:
    """Return the largest batch whose steps are within TPOT, or within UNREACHABLE_SLACK of the shortest step if
    that is longer."""
    if sequence_s <= 0:
        return most
    return 1 + int(min((max(tpot_s, UNREACHABLE_SLACK * step_s) - step_s) / sequence_s, most))
