"""How many sequences a decode replica runs at once, and how many it may."""

from dataclasses import dataclass
from math import inf, sqrt

from deployment.autoscaling.pool_model import UNREACHABLE_SLACK
from deployment.autoscaling.queueing import normal_quantile
from deployment.autoscaling.settings import ScalingSettings
from deployment.autoscaling.snapshot import DecodeSnapshot, Traffic

MIN_MEASURED_SEQUENCES = 16  # with fewer running, their mean context says too little


@dataclass(frozen=True, slots=True)
class DecodeModel:
    """Sequences come, stay for their output tokens' steps, and go; a step is longer the more of them there are.

    The number at once has the mean of Little's law (1961) and nearly Poisson's variance, times the peakedness of the
    arrivals, (1 + ca2) / 2 for exponential stays (Whitt, Heavy-traffic approximations for service systems with
    blocking, 1984). So a pool has places for the mean and, as in square-root staffing (Halfin and Whitt, 1981), for so
    many standard deviations as the quantile says.
    """

    num_output_tokens: float
    step_s: float  # with one sequence
    sequence_s: float
    places: int  # sequences that one replica may run
    peakedness: float
    deviations: float

    @classmethod
    def of(cls, traffic: Traffic, decode: DecodeSnapshot, settings: ScalingSettings, factor: float) -> "DecodeModel":
        """From measured rates; `factor` makes each step so much longer, as measured TPOT demands."""
        return cls(
            num_output_tokens=traffic.output_tokens.mean,
            step_s=factor * decode.step_s,
            sequence_s=factor * decode.sequence_s,
            places=num_places(traffic, decode, settings, factor),
            peakedness=(1 + traffic.arrival_cv2) / 2,
            deviations=normal_quantile(settings.slo.quantile),
        )

    def step_time_s(self, num_sequences: float) -> float:
        """Seconds of a step of one replica."""
        return self.step_s + self.sequence_s * max(0.0, num_sequences - 1)

    def mean_sequences(self, num_replicas: int, requests_per_s: float) -> float:
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
        """TPOT's quantile."""
        return self.step_time_s(self.most_sequences(num_replicas, requests_per_s))

    def holds(self, num_replicas: int, requests_per_s: float) -> bool:
        """Whether there are places for the quantile of the sequences."""
        return self.most_sequences(num_replicas, requests_per_s) <= self.places

    def rate(self, num_replicas: int) -> float:
        """The most requests per second: the mean that leaves room for the deviations, by Little's law."""
        if num_replicas < 1:
            return 0.0
        spread = self.deviations * sqrt(self.peakedness / num_replicas)
        root = (sqrt(spread * spread + 4 * self.places) - spread) / 2
        return self._little(root * root, num_replicas)

    def full_rate(self, num_replicas: float) -> float:
        """Requests per second that leave a pool in which every place is taken."""
        return self._little(self.places, num_replicas)

    def _little(self, num_sequences: float, num_replicas: float) -> float:
        """The rate at which so many sequences are on each replica."""
        stay_s = self.num_output_tokens * self.step_time_s(num_sequences)
        return num_replicas * num_sequences / stay_s if stay_s > 0 else inf


def num_places(traffic: Traffic, decode: DecodeSnapshot, settings: ScalingSettings, factor: float) -> int:
    """The sequences that one replica may run: by the steps' time, its KV cache and its batch, whichever are fewest."""
    step_s, sequence_s = factor * decode.step_s, factor * decode.sequence_s
    places = decode.max_num_seqs
    if sequence_s > 0:
        tpot_s = max(settings.slo.tpot_s, UNREACHABLE_SLACK * step_s)
        places = min(places, 1 + int(min((tpot_s - step_s) / sequence_s, places)))
    context = mean_context(traffic, decode)
    if decode.kv_tokens > 0 and context > 0:
        places = min(places, int(settings.max_kv_share * decode.kv_tokens / context))
    return max(1, places)


def mean_context(traffic: Traffic, decode: DecodeSnapshot) -> float:
    """Tokens that a running sequence holds, over the time that it runs.

    As measured, where enough run: shared prefixes are held once. Else by renewal-reward: of an output of O tokens the
    mean held is O / 2, and long ones are met longer, so E[P] + E[O^2] / (2 E[O]).
    """
    if decode.num_running >= MIN_MEASURED_SEQUENCES and decode.kv_used_tokens > 0:
        return decode.kv_used_tokens / decode.num_running
    output = traffic.output_tokens
    return traffic.prompt_tokens.mean + (output.second / (2 * output.mean) if output.mean > 0 else 0.0)
