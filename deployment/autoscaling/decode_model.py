"""How many sequences a decode replica runs at once, and how many it may."""

from dataclasses import dataclass
from math import inf, sqrt

from baton.deployment.autoscaling.kv_demand import KVDemand
from baton.deployment.autoscaling.pool_model import UNREACHABLE_SLACK
from baton.deployment.autoscaling.queueing import normal_quantile
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, Traffic

NUM_HALVINGS = 24  # of the interval in which a rate is looked for


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """Sequences come, stay for their output tokens' steps, and go; a step is longer the more of them there are.

    The number at once has the mean of Little's law (1961) and nearly Poisson's variance, times the peakedness of the
    arrivals, (1 + ca2) / 2 for exponential stays (Whitt, Heavy-traffic approximations for service systems with
    blocking, 1984). So a pool has places for the mean and, as in square-root staffing (Halfin and Whitt, 1981), for so
    many standard deviations as the quantile says; and KV for as many of what they hold, which they do for longer than
    they decode.
    """

    num_output_tokens: float
    step_s: float  # with one sequence
    sequence_s: float
    places: int  # sequences that one replica may run
    capacity: int  # that it would run, were they there
    kv: KVDemand
    peakedness: float
    deviations: float

    @classmethod
    def of(
        cls,
        traffic: Traffic,
        decode: DecodeSnapshot,
        settings: ScalingSettings,
        factor: float,
        prompt_token_s: float = 0.0,
    ) -> "DecodeModel":
        """From measured rates; `factor` makes each step so much longer, as measured TPOT demands. `prompt_token_s`: of
        a sequence, the tokens of its prompt times the seconds until its first token.
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
        """Seconds of a step of one replica."""
        return self.step_s + self.sequence_s * max(0.0, num_sequences - 1)

    def mean_sequences(self, num_replicas: float, requests_per_s: float) -> float:
        """At once on one replica: Little's law where the stay depends on the number itself.

        x = r * (step_s + sequence_s * (x - 1)) for r tokens per second and replica; infinite if tokens come faster than
        steps can ever give them.
        """
        tokens_per_s = requests_per_s * self.num_output_tokens / num_replicas
        if tokens_per_s * self.step_s <= 1:
            return tokens_per_s * self.step_s
        room = 1 - tokens_per_s * self.sequence_s
        if room <= 0:
            return inf
        return tokens_per_s * max(0.0, self.step_s - self.sequence_s) / room

    def most_sequences(self, num_replicas: int, requests_per_s: float) -> float:
        """The quantile of the number on one replica, if the router keeps the pool even."""
        mean = self.mean_sequences(num_replicas, requests_per_s)
        return mean + self.deviations * sqrt(mean * self.peakedness / num_replicas)

    def predicted_s(self, num_replicas: int, requests_per_s: float) -> float:
        """TPOT's quantile: a replica that is full lets the rest wait, and its steps grow no longer."""
        return self.step_time_s(min(self.capacity, self.most_sequences(num_replicas, requests_per_s)))

    def holds(self, num_replicas: int, requests_per_s: float) -> bool:
        """Whether there are places for the quantile of the sequences, and KV for that of their tokens."""
        if self.most_sequences(num_replicas, requests_per_s) > self.places:
            return False
        return self._holds_kv(num_replicas, requests_per_s, self.deviations)

    def rate(self, num_replicas: int) -> float:
        """The most requests per second: the mean that leaves room for the deviations, by Little's law."""
        if num_replicas < 1:
            return 0.0
        spread = self.deviations * sqrt(self.peakedness / num_replicas)
        root = (sqrt(spread * spread + 4 * self.places) - spread) / 2
        return self._kept_by_kv(self._little(root * root, num_replicas), num_replicas, self.deviations)

    def full_rate(self, num_replicas: float) -> float:
        """Requests per second that leave a pool in which every place, or all KV, is taken."""
        return self._kept_by_kv(self._little(self.places, num_replicas), num_replicas, 0.0)

    def _little(self, num_sequences: float, num_replicas: float) -> float:
        """The rate at which so many sequences are on each replica."""
        stay_s = self.num_output_tokens * self.step_time_s(num_sequences)
        return num_replicas * num_sequences / stay_s if stay_s > 0 else inf

    def _kept_by_kv(self, rate: float, num_replicas: float, deviations: float) -> float:
        """That rate, or as much less as KV allows, by halving."""
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
    """The sequences whose steps are within TPOT; where that is not for one, within the least that is reachable."""
    if sequence_s <= 0:
        return most
    return 1 + int(min((max(tpot_s, UNREACHABLE_SLACK * step_s) - step_s) / sequence_s, most))
