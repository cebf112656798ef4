"""KV that sequences hold on decode replicas, from admission to the end."""

from dataclasses import dataclass
from math import inf, sqrt

from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, Traffic

MIN_MEASURED_SEQUENCES = 16  # with fewer running, their mean context is not used


@dataclass(frozen=True, slots=True)
class KVDemand:
    """Size of a replica's KV cache, and the tokens that a sequence holds over time.

    Blocks for a whole prompt are allocated at admission, before it is prefilled. So a sequence holds its prompt while
    it waits for a prefill worker, is prefilled and transferred, and only then decodes. The total is shot noise
    (Campbell, The study of discontinuous phenomena, 1909): if sequences arrive at a rate and hold h(t) tokens, the mean
    is the rate times the integral of h, and the variance the rate times the integral of h^2.
    """

    tokens: float  # capacity for a replica's sequences; infinite if unknown
    context: float  # mean tokens of a decoding sequence
    prompt_token_s: float  # a sequence's prompt tokens times the seconds until its first token
    largest: float  # integral of h^2 over integral of h, in tokens; dominated by the longest prompts

    @classmethod
    def of(
        cls, traffic: Traffic, decode: DecodeSnapshot, settings: ScalingSettings, prompt_token_s: float
    ) -> "KVDemand":
        """Make it from measured lengths. Context is assumed to vary like prompt lengths, independent of the stay."""
        context, unshared = mean_context(traffic, decode), unshared_context(traffic)
        variation = traffic.prompt_tokens.variance / (unshared * unshared) if unshared > 0 else 0.0
        tokens = settings.max_kv_share * decode.kv_tokens if decode.kv_tokens > 0 else inf
        return cls(tokens, context, prompt_token_s, context * (1 + variation))

    @property
    def num_sequences(self) -> float:
        """Number of decoding sequences that fill a replica."""
        return self.tokens / self.context if self.context > 0 else inf

    def mean_tokens(self, num_decoding: float, requests_per_s: float) -> float:
        """Return the mean tokens held on a replica with this arrival rate and number of decoding sequences."""
        return num_decoding * self.context + requests_per_s * self.prompt_token_s

    def most_tokens(self, mean_tokens: float, deviations: float, peakedness: float, num_replicas: float) -> float:
        """Return the tokens `deviations` standard deviations above the mean, assuming a balanced pool."""
        return mean_tokens + deviations * sqrt(mean_tokens * self.largest * peakedness / num_replicas)


def mean_context(traffic: Traffic, decode: DecodeSnapshot) -> float:
    """Return the tokens per decoding sequence: measured if enough are running, as shared prefixes are held once."""
    if decode.num_running >= MIN_MEASURED_SEQUENCES and decode.kv_used_tokens > 0:
        return decode.kv_used_tokens / decode.num_running
    return unshared_context(traffic)


def unshared_context(traffic: Traffic) -> float:
    """Return the tokens per decoding sequence without shared prefixes, from the lengths.

    By renewal-reward: an output of O tokens holds O / 2 on average, and long outputs are observed for longer, so the
    mean is E[P] + E[O^2] / (2 E[O]).
    """
    output = traffic.output_tokens
    return traffic.prompt_tokens.mean + (output.second / (2 * output.mean) if output.mean > 0 else 0.0)
