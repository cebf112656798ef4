"""Which part of a model each rank of a tensor-parallel group has (Megatron-LM, arXiv 1909.08053).

Attention heads, the inner columns of MLPs and experts, and the vocabulary's rows are divided evenly, one rank after the
other; experts that are kept whole are divided by their number. Where there are more ranks than KV heads, ranks that
follow each other hold the same one. What all heads share (norms, the router of experts, the latent of MLA) is on every
rank.
"""

from dataclasses import dataclass, replace

from baton.engine.config import ModelConfig
from baton.engine.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class TensorShard:
    """The part of one rank."""

    rank: int = 0
    size: int = 1  # number of ranks
    has_whole_experts: bool = False  # each of some, instead of some columns of each

    def of(self, count: int, width: int = 1) -> slice:
        """Our part of `count` things, each of so many rows or columns, that lie side by side."""
        first = self.rank * count // self.size
        return slice(first * width, (first + self.share(count)) * width)

    def share(self, count: int) -> int:
        """How many of `count` things every rank has."""
        return max(1, count // self.size)

    def experts_of(self, count: int) -> range:
        """Which of `count` experts are here; numbers that do not divide are shared out as evenly as can be."""
        if not self.has_whole_experts:
            return range(count)
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    @property
    def of_an_expert(self) -> "TensorShard":
        """Our part of each expert that is here."""
        return TensorShard() if self.has_whole_experts else self

    def local(self, config: ModelConfig) -> ModelConfig:
        """What the attention of this rank sees of a model: fewer heads."""
        heads, kv_heads = self.share(config.num_heads), self.share(config.num_kv_heads)
        return replace(config, num_heads=heads, num_kv_heads=kv_heads)

    def kv_parts(self, config: ModelConfig, wanted: int | None = None) -> int:
        """Parts into which a block is divided: those that are wanted, as far as there are heads, or the fewest.

        See KVCacheLayout.
        """
        return 1 if config.mla is not None else min(wanted or self.size, config.num_kv_heads)

    def check(self, config: ModelConfig) -> None:
        """Raises UnsupportedModel, naming all sizes that cannot be divided."""
        counts = {"num_attention_heads": config.num_heads, "vocab_size": config.vocab_size}
        if not all(map(config.is_sparse, range(config.num_layers))):
            counts["intermediate_size"] = config.intermediate_size
        if config.moe is not None and not self.has_whole_experts:
            counts["intermediate size of an expert"] = config.moe.intermediate_size
        uneven = [f"{name} {count}" for name, count in counts.items() if count % self.size]
        if config.mla is None and config.num_kv_heads % self.size and self.size % config.num_kv_heads:
            uneven.append(f"num_key_value_heads {config.num_kv_heads}")
        if uneven:
            raise UnsupportedModel(
                f"{config.architecture} cannot be divided among {self.size} ranks: {_listed(uneven)}"
            )


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
