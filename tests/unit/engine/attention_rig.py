"""Sequences in scattered blocks of a pool, and chunks of them for attention backends."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from baton.engine.attention import fp8_rows, int4_rows, int8_rows
from baton.engine.attention.base import AttentionBackend
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.kind import AttentionKind
from baton.engine.attention.native import NativeAttention
from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch
from baton.engine.kv.layout import KVCacheLayout
from baton.engine.kv.scales import UNSCALED, KVScales
from baton.engine.mla import MLAConfig
from baton.engine.rope import RopeConfig

NUM_LAYERS, LAYER = 2, 1
Chunks = Mapping[int, range]  # positions of new tokens, by sequence


@dataclass(frozen=True, slots=True)
class PagedHeads:
    """Attention heads and the layout of their KV blocks."""

    heads: AttentionHeads
    block_size: int
    num_parts: int = 1
    scales: KVScales = UNSCALED
    span: AttentionSpan = FULL
    soft_cap: float | None = None
    has_sinks: bool = False

    @property
    def kind(self) -> AttentionKind:
        """Kind of the layer's attention; each head has another sink."""
        sinks = torch.linspace(-2, 4, self.heads.num_heads) if self.has_sinks else None
        return AttentionKind(self.span, sinks)

    @property
    def is_latent(self) -> bool:
        """Whether values are the keys' first columns."""
        return self.heads.value_width < self.heads.key_width

    @property
    def scale(self) -> float:
        """Factor on the scores."""
        return float(self.heads.key_width**-0.5)

    def native(self, instructions: str | None = None) -> NativeAttention:
        """The compiled kernel for these heads."""
        return NativeAttention(self.scale, self.block_size, self.heads, instructions, self.soft_cap)

    def reference(self) -> TorchAttention:
        """The reference for these heads."""
        rank = self.heads.value_width if self.is_latent else 0
        return TorchAttention(self.scale, self.block_size, kv_lora_rank=rank, soft_cap=self.soft_cap)

    def in_float32(self) -> "PagedHeads":
        """The same heads, exactly computed."""
        return replace(self, heads=replace(self.heads, dtype=torch.float32))


class Sequences:
    """Owns the queries, keys and values of all tokens of some sequences, and the blocks that they are for."""

    def __init__(self, paged: PagedHeads, lens: list[int], seed: int) -> None:
        self.paged = paged
        heads = paged.heads
        generator = torch.Generator().manual_seed(seed)
        num_rows = heads.num_heads + 2 * heads.num_kv_heads
        self.tokens = [
            torch.randn(length, num_rows, heads.key_width, generator=generator).to(heads.dtype) for length in lens
        ]
        counts = [-(-length // paged.block_size) for length in lens]
        self.num_blocks = sum(counts) + 1
        ids = random.Random(seed).sample(range(1, self.num_blocks), sum(counts))
        self.tables = [[ids.pop() for _ in range(count)] for count in counts]

    def pool(self, computed: Chunks, unseen: float = 0.0) -> Tensor:
        """Return a pool with the KV of the computed tokens, and `unseen` elsewhere."""
        heads, size = self.paged.heads, self.paged.block_size
        shape: tuple[int, ...] = (NUM_LAYERS, size)
        if not self.paged.is_latent:
            parts = self.paged.num_parts
            shape = (parts, NUM_LAYERS, 2, heads.num_kv_heads // parts, size)
        nowhere = self._cached(torch.full((heads.key_width,), unseen, dtype=heads.dtype), 1.0)
        pool = nowhere.expand(self.num_blocks, *shape, -1).clone()
        cache = KVCacheLayout.layer_cache(pool, LAYER)
        for seq, places in computed.items():
            new_keys, new_values = self.tokens[seq][: places.stop, heads.num_heads :].chunk(2, dim=1)
            scales = self.paged.scales
            rows = self._cached(new_keys, scales.key), self._cached(new_values, scales.value)
            for place in places:
                block, offset = self.tables[seq][place // size], place % size
                keys, values = (each[place] for each in rows)
                if self.paged.is_latent:
                    cache[block, offset] = keys[0]
                else:
                    cache[block, :, 0, :, offset] = keys.unflatten(0, cache.shape[1:4:2])
                    cache[block, :, 1, :, offset] = values.unflatten(0, cache.shape[1:4:2])
        return pool

    def batch(self, chunks: Chunks) -> Batch:
        """Return the batch of these chunks; chunks of one token must come first."""
        size = self.paged.block_size
        longest = max(len(self.tables[seq]) for seq in chunks) + 1
        slots = [
            self.tables[seq][place // size] * size + place % size for seq, places in chunks.items() for place in places
        ]
        query_lens = [len(places) for places in chunks.values()]
        context_lens = [places.stop for places in chunks.values()]
        return Batch(
            token_ids=torch.zeros(len(slots), dtype=torch.int64),
            positions=torch.tensor([place for places in chunks.values() for place in places]),
            slot_mapping=torch.tensor(slots),
            query_starts=torch.tensor([0, *query_lens]).cumsum(0),
            context_lens=torch.tensor(context_lens),
            block_tables=torch.tensor([self.tables[seq] + [0] * (longest - len(self.tables[seq])) for seq in chunks]),
            logits_indices=torch.tensor([0]),
            query_lens_list=query_lens,
            context_lens_list=context_lens,
            num_decodes=query_lens.count(1),
        )

    def attend(
        self, backend: AttentionBackend, chunks: Chunks, pool: Tensor, dtype: torch.dtype | None = None
    ) -> Tensor:
        """Return one layer's attention, by sequence and position: [num_tokens, num_heads, value_width].

        dtype: of the computation (default: that of the heads).
        """
        heads, batch = self.paged.heads, self.batch(chunks)
        rows = torch.cat([self.tokens[seq][places.start : places.stop] for seq, places in chunks.items()])
        q, k, v = rows.to(dtype or heads.dtype).split_with_sizes(
            [heads.num_heads, *[heads.num_kv_heads] * 2], dim=1
        )  # strided
        backend.plan(batch)
        cache = KVCacheLayout.layer_cache(pool, LAYER)
        if self.paged.is_latent:
            return backend.forward_latent(q.contiguous(), k[:, 0], cache, batch)
        return backend.forward(q, k, v, cache, batch, self.paged.scales, self.paged.kind)

    def _cached(self, rows: Tensor, scale: float) -> Tensor:
        """Return rows as the cache stores them; scale: used in FP8 only."""
        if self.paged.heads.cached_dtype == fp8_rows.DTYPE:
            return fp8_rows.encode(rows, scale)
        if self.paged.heads.is_int4:
            return int4_rows.encode(rows)
        return int8_rows.encode(rows) if self.paged.heads.is_quantised else rows


def random_kind(paged: PagedHeads, draw: random.Random) -> PagedHeads:
    """Return the heads with a span, a soft cap or sinks, or several of them."""
    size = draw.choice((None, 1, 4, 32, 128, 256, 300))
    span = (
        FULL if size is None else AttentionSpan(size, is_chunked=size % paged.block_size == 0 and draw.random() < 0.4)
    )
    return replace(paged, span=span, soft_cap=draw.choice((None, 1.5)), has_sinks=draw.random() < 0.5)


def random_chunks(draw: random.Random, longest: int) -> dict[int, range]:
    """Return some decodes, then some chunks of prompts, with and without earlier context."""
    query_lens = [1] * draw.randint(0, 4) + [draw.randint(2, 150) for _ in range(draw.randint(0, 2))]
    chunks = {}
    for seq, query_len in enumerate(query_lens or [1]):
        start = draw.choice((0, draw.randint(0, 300), draw.randint(0, longest - query_len)))
        chunks[seq] = range(start, start + query_len)
    return chunks


def model_config(mla: MLAConfig | None, dtype: str, head_dim: int = 16) -> ModelConfig:
    """Return a config with the fields that attention needs."""
    return ModelConfig(
        architecture="any",
        vocab_size=1,
        hidden_size=1,
        num_layers=1,
        num_heads=4,
        num_kv_heads=4 if mla else 2,
        head_dim=mla.qk_head_dim if mla else head_dim,
        intermediate_size=1,
        rms_norm_eps=1e-6,
        rope=RopeConfig(theta=1e4, rotary_dim=8),
        max_model_len=64,
        dtype=dtype,
        mla=mla,
    )
