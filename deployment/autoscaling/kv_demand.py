"""The KV that sequences hold on decode replicas, from their admission to their end."""

from dataclasses import dataclass
from math import inf, sqrt

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, Traffic

MIN_MEASURED_SEQUENCES = 16  # with fewer running, their mean context says too little


@dataclass(frozen=True, slots=True)
class KVDemand:
    """A replica's KV cache, and what one sequence takes of it and for how long.

    Blocks for a whole prompt are taken at admission, before anybody computes it. So a sequence holds its prompt through
    the wait for a prefill worker, the computation and the transfer, and only then decodes. What is held at once is shot
    noise (Campbell, The study of discontinuous phenomena, 1909): of sequences that come at a rate and hold h(t) tokens
    for a time, the mean is the rate times the integral of h, the variance the rate times the integral of its square.
    """

    tokens: float  # that a replica's sequences may hold; infinite if that is not known
    context: float  # tokens that a decoding sequence holds, over the time that it decodes
    prompt_token_s: float  # of a sequence: its prompt's tokens, times the seconds until its first token
    largest: float  # the integral of the square over that of h: tokens, mostly those of the longest prompts

    @classmethod
    def of(
        cls, traffic: Traffic, decode: DecodeSnapshot, settings: ScalingSettings, prompt_token_s: float
    ) -> "KVDemand":
        """From measured lengths; a sequence's length is taken to vary as prompts do, and not with how long it stays."""
        context, unshared = mean_context(traffic, decode), unshared_context(traffic)
        variation = traffic.prompt_tokens.variance / (unshared * unshared) if unshared > 0 else 0.0
        tokens = settings.max_kv_share * decode.kv_tokens if decode.kv_tokens > 0 else inf
        return cls(tokens, context, prompt_token_s, context * (1 + variation))

    @property
    def num_sequences(self) -> float:
        """Decoding sequences that fill a replica."""
        return self.tokens / self.context if self.context > 0 else inf

    def mean_tokens(self, num_decoding: float, requests_per_s: float) -> float:
        """Held at once on one replica, to which so many requests come and where so many decode."""
        return num_decoding * self.context + requests_per_s * self.prompt_token_s

    def most_tokens(self, mean_tokens: float, deviations: float, peakedness: float, num_replicas: float) -> float:
        """So many standard deviations above the mean, if the router keeps the pool even."""
        return mean_tokens + deviations * sqrt(mean_tokens * self.largest * peakedness / num_replicas)


def mean_context(traffic: Traffic, decode: DecodeSnapshot) -> float:
    """Tokens that a decoding sequence holds: as measured, where enough decode, for shared prefixes are held once."""
    if decode.num_running >= MIN_MEASURED_SEQUENCES and decode.kv_used_tokens > 0:
        return decode.kv_used_tokens / decode.num_running
    return unshared_context(traffic)


def unshared_context(traffic: Traffic) -> float:
    """The same from the lengths, by renewal-reward: of an output of O tokens the mean held is O / 2, and long ones are
    met longer, so E[P] + E[O^2] / (2 E[O]).
    """
    output = traffic.output_tokens
    return traffic.prompt_tokens.mean + (output.second / (2 * output.mean) if output.mean > 0 else 0.0)
