"""Rotary position embedding of a model, as its config describes it: plain data, no torch."""

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding: kind of scaling and its parameters, as in config.json."""

    theta: float
    rotary_dim: int  # the first dimensions of a head; the others are not rotated
    kind: str = "default"  # default, linear, llama3, yarn, longrope, proportional
    proportion: float = 1.0  # of the pairs that are rotated, the first ones, with kind proportional
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float | None = None
    truncate: bool = True
    interleaved: bool = False  # rotated pairs are adjacent dimensions (DeepSeek), not half the rotary width apart
    query_scaling_offset: int = 0  # added to the positions for it
    query_scaling_beta: float = 0.0  # growth of queries beyond the original context (Llama 4, Ministral 3)
    divisors: tuple[float, ...] = ()  # LongRoPE: of each pair's frequency; those for the original context
    long_divisors: tuple[float, ...] = ()  # for longer contexts

    @property
    def cos_sin_scale(self) -> float:
        """Factor on cos and sin (YaRN, arXiv 2309.00071, section 3.4; with DeepSeek's two mscales; LongRoPE)."""
        if self.kind not in ("yarn", "longrope"):
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        if self.kind == "longrope":
            original = math.log(self.original_max_position_embeddings)
            return math.sqrt(1 + math.log(self.factor) / original) if self.factor > 1 else 1.0
        if self.mscale and self.mscale_all_dim:
            return yarn_mscale(self.factor, self.mscale) / yarn_mscale(self.factor, self.mscale_all_dim)
        return yarn_mscale(self.factor, 1.0)

    def for_context(self, max_model_len: int) -> "RopeConfig":
        """Return the embedding for contexts of this length: LongRoPE has one up to its original context and another."""
        is_long = self.kind == "longrope" and max_model_len > self.original_max_position_embeddings
        return replace(self, divisors=self.long_divisors) if is_long else self


def yarn_mscale(factor: float, weight: float) -> float:
    """Return YaRN's scale of attention logits for a context extended by `factor`; 1 if it is not extended."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0
