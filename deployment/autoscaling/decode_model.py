"""Queueing model of the decode pool: TPOT and KV use as a function of its size."""

from dataclasses import dataclass
from math import inf, sqrt

from baton.deployment.autoscaling.kv_demand import KVDemand
from baton.deployment.autoscaling.pool_model import UNREACHABLE_SLACK
from baton.deployment.autoscaling.queueing import normal_quantile
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, Traffic

NUM_HALVINGS = 24  # bisection steps of the search for a rate


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

    @classmethod
    def of(
        cls,
        traffic: Traffic,
        decode: DecodeSnapshot,
        settings: ScalingSettings,
        factor: float,
        prompt_token_s: float = 0.0,
    ) -> "DecodeModel":
        """Make the model from measured rates.

        `factor` is the correction of step times by measured TPOT. `prompt_token_s` is a sequence's prompt tokens times
        the seconds until its first token.
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
        )

    def step_time_s(self, num_sequences: float) -> float:
        """Return the seconds of a step with this batch size."""
        return self.step_s + self.sequence_s * max(0.0, num_sequences - 1)

    def mean_sequences(self, num_replicas: float, requests_per_s: float) -> float:
        """Return the mean batch size of a replica, by Little's law with a stay that depends on the batch size.

        Solves x = r * (step_s + sequence_s * (x - 1)) for r tokens per second and replica; infinite if no batch size
        can produce r.
        """
        tokens_per_s = requests_per_s * self.num_output_tokens / num_replicas
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
        return self.step_time_s(min(self.capacity, self.most_sequences(num_replicas, requests_per_s)))

    def holds(self, num_replicas: int, requests_per_s: float) -> bool:
        """Whether the SLO quantiles of the batch size and of the held KV fit."""
        if self.most_sequences(num_replicas, requests_per_s) > self.places:
            return False
        return self._holds_kv(num_replicas, requests_per_s, self.deviations)

    def rate(self, num_replicas: int) -> float:
        """Return the highest request rate that holds: Little's law with room for the deviations."""
        if num_replicas < 1:
            return 0.0
        spread = self.deviations * sqrt(self.peakedness / num_replicas)
        root = (sqrt(spread * spread + 4 * self.places) - spread) / 2
        return self._kept_by_kv(self._little(root * root, num_replicas), num_replicas, self.deviations)

    def full_rate(self, num_replicas: float) -> float:
        """Return the throughput in requests per second of a pool whose slots or KV are all in use."""
        return self._kept_by_kv(self._little(self.places, num_replicas), num_replicas, 0.0)

    def _little(self, num_sequences: float, num_replicas: float) -> float:
        """Return the request rate at which each replica has this batch size on average."""
        stay_s = self.num_output_tokens * self.step_time_s(num_sequences)
        return num_replicas * num_sequences / stay_s if stay_s > 0 else inf

    def _kept_by_kv(self, rate: float, num_replicas: float, deviations: float) -> float:
        """Return the rate, reduced by bisection to what KV allows."""
        if rate == inf or self._holds_kv(num_replicas, rate, deviations):
            return rate
        low, high = 0.0, rate
        for _ in range(NUM_HALVINGS):
            middle = (low + high) / 2
            if self._holds_kv(num_replicas, middle, deviations):
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
