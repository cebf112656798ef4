"""Shard of a model that a tensor-parallel rank holds (Megatron-LM, arXiv 1909.08053).

Attention heads, the inner columns of MLPs and experts, and the rows of the vocabulary are divided evenly, in rank
order. With `has_whole_experts`, whole experts are divided among the ranks instead. If there are more ranks than KV
heads, consecutive ranks hold the same head, and the same part of each recurrent layer. Everything shared by all heads
(norms, the expert router, the latent of MLA) is on every rank. The encoder of images is on rank 0 alone: it sends the
embeddings, which are small, to the other ranks, so that all have the same bits.
"""

from dataclasses import dataclass, replace

from baton.engine.config import ModelConfig
from baton.engine.errors import UnsupportedModel


@dataclass(frozen=True, slots=True)
class TensorShard:
    """Shard of one rank."""

    rank: int = 0
    size: int = 1  # number of ranks
    has_whole_experts: bool = False  # holds some experts whole, instead of some columns of each expert

    def of(self, count: int, width: int = 1) -> slice:
        """Return this rank's slice of `count` adjacent items of `width` rows or columns each."""
        first = self.rank * count // self.size
        return slice(first * width, (first + self.share(count)) * width)

    def share(self, count: int) -> int:
        """Return how many of `count` items each rank holds; at least one."""
        return max(1, count // self.size)

    def experts_of(self, count: int) -> range:
        """Return which of `count` experts this rank holds; whole experts are divided as evenly as possible."""
        if not self.has_whole_experts:
            return range(count)
        return range(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    @property
    def per_expert(self) -> "TensorShard":
        """Shard of each expert that this rank holds."""
        return TensorShard() if self.has_whole_experts else self

    def local(self, config: ModelConfig) -> ModelConfig:
        """Return the config as this rank's attention sees it: with its share of the heads."""
        heads, kv_heads = self.share(config.num_heads), self.share(config.num_kv_heads)
        whole = config.whole_heads and replace(config.whole_heads, count=self.share(config.whole_heads.count))
        return replace(config, num_heads=heads, num_kv_heads=kv_heads, whole_heads=whole)

    def kv_parts(self, config: ModelConfig, wanted: int | None = None) -> int:
        """Return the shards per block (see KVCacheLayout): `wanted`, otherwise one per rank; at most the KV heads."""
        if not config.kv_layers:
            return wanted or self.size
        return 1 if config.mla is not None else min(wanted or self.size, *_kv_counts(config).values())

    def check(self, config: ModelConfig) -> None:
        """Raise UnsupportedModel, naming all sizes that cannot be divided."""
        counts = {"vocab_size": config.vocab_size}
        if config.kv_layers:
            counts = {"num_attention_heads": config.num_heads} | counts
        if config.recurrent is not None:
            counts["width of a recurrent layer"] = config.recurrent.output_width
        is_parallel = config.moe is not None and config.moe.is_parallel
        if is_parallel or not all(map(config.is_sparse, range(config.num_layers))):
            counts["intermediate_size"] = config.intermediate_size
        if config.moe is not None and not self.has_whole_experts:
            counts["intermediate size of an expert"] = config.moe.intermediate_size
        if config.moe is not None and config.moe.shared_size:
            counts["intermediate size of the shared experts"] = config.moe.shared_size
        if config.shared_intermediate_size is not None:
            counts["intermediate size of layers with shared KV"] = config.shared_intermediate_size
        if config.layer_input_size:
            counts["vocab_size_per_layer_input"] = config.layer_input_vocab_size
        kv_counts = _kv_counts(config) if config.mla is None and config.kv_layers else {}
        if len(set(kv_counts.values())) > 1:
            counts |= kv_counts  # layers with different heads are divided alike
        uneven = [f"{name} {count}" for name, count in counts.items() if count % self.size]
        if kv_counts and config.num_kv_heads % self.size and self.size % config.num_kv_heads:
            uneven.append(f"num_key_value_heads {config.num_kv_heads}")
        if uneven:
            raise UnsupportedModel(
                f"{config.architecture} cannot be divided among {self.size} ranks: {_listed(uneven)}"
            )


def _kv_counts(config: ModelConfig) -> dict[str, int]:
    """Return the number of KV heads of each kind of layer."""
    counts = {"num_key_value_heads": config.num_kv_heads}
    if config.whole_heads is not None:
        counts["num_global_key_value_heads"] = config.whole_heads.count
    return counts


def _listed(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
