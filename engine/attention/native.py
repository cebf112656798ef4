"""Native attention backend: the compiled kernel, on a CPU."""

import torch
from torch import Tensor

from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.kind import PLAIN, AttentionKind
from baton.engine.attention.span import AttentionSpan
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch
from baton.engine.kv.scales import UNSCALED, KVScales
from baton.engine.native.paged_attention import Cache, PagedAttention, Rows, Span, instruction_sets

_NO_ROWS = Rows(0, 0, 0)  # in place of new keys and values if the KV is in the cache already


class NativeAttention:
    """Attention that reads each block in place, once for all query heads of a KV head.

    A token's result depends only on the tokens that it attends to, not on the other sequences of the batch, on the
    chunk that it is computed in, or on the number of threads.
    """

    def __init__(
        self,
        scale: float,
        block_size: int,
        heads: AttentionHeads,
        instructions: str | None = None,
        soft_cap: float | None = None,
    ) -> None:
        """scale: factor on the scores; block_size: tokens per block; instructions: default is the best set available.

        soft_cap: bound on the scores, by cap * tanh(score / cap).
        Raises ValueError for instructions that this processor lacks.
        """
        self.heads = heads
        self.block_size = block_size
        self._caches: dict[tuple[object, ...], Cache] = {}  # one per layer
        self._spans: dict[AttentionSpan, Span] = {}
        self._kernel = PagedAttention(
            scale=scale,
            block_size=block_size,
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            key_width=heads.key_width,
            value_width=heads.value_width,
            is_bfloat16=heads.dtype == torch.bfloat16,
            is_quantised=heads.is_quantised,
            is_int4=heads.is_int4,
            soft_cap=soft_cap or 0.0,
            instructions=instructions or instruction_sets()[0],
        )

    @classmethod
    def for_model(cls, config: ModelConfig, block_size: int, kv_dtype: torch.dtype | None = None) -> "NativeAttention":
        """Create the attention of a model, over KV in the model's dtype, in int8 or in int4."""
        heads = AttentionHeads.of(config, kv_dtype)
        return cls(config.attention_scale, block_size, heads, soft_cap=config.attention_soft_cap)

    def plan(self, batch: Batch) -> None:
        """Divide the step among torch's threads, once for all layers."""
        tables, slots = batch.block_tables.contiguous(), batch.slot_mapping.contiguous()
        assert tables.dtype == slots.dtype == torch.int64
        assert tables.is_cpu
        assert slots.is_cpu
        self._kernel.plan(
            query_lens=batch.query_lens_list,
            context_lens=batch.context_lens_list,
            block_tables=tables.data_ptr(),
            max_blocks=tables.shape[1],
            slots=slots.data_ptr(),
            num_slots=slots.shape[0],
            num_threads=torch.get_num_threads(),
        )

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        layer_cache: Tensor,
        batch: Batch,
        scales: KVScales = UNSCALED,
        kind: AttentionKind = PLAIN,
    ) -> Tensor:
        """Write the new KV and return the attention of one layer."""
        heads, num_tokens = self.heads, q.shape[0]
        cache = self._caches.get(place := _place(layer_cache))
        if cache is None:
            cache = self._caches[place] = self._cache(layer_cache)
        is_written = k.shape[1] == 0
        assert k.shape == v.shape == (num_tokens, 0 if is_written else heads.num_kv_heads, heads.key_width)
        result = torch.empty(num_tokens, heads.num_heads, heads.value_width, dtype=heads.dtype)
        assert q.shape == result.shape
        q, k, v = _dense(q, heads.dtype), _dense(k, heads.dtype), _dense(v, heads.dtype)
        sinks = _sinks(kind, heads.num_heads)
        span = self._span(kind.span)
        keys, values = (_NO_ROWS, _NO_ROWS) if is_written else (_rows(k), _rows(v))
        self._kernel.forward(_rows(q), keys, values, cache, _rows(result), num_tokens, span, sinks)
        return result

    def forward_latent(self, q: Tensor, latent: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Write the new latents and return the attention of one MLA layer."""
        heads, num_tokens = self.heads, q.shape[0]
        assert heads.num_kv_heads == 1
        width = heads.key_width
        cache = self._caches.get(place := _place(layer_cache))
        if cache is None:
            cache = self._caches[place] = self._latent_cache(layer_cache)
        assert latent.shape == (num_tokens, width)
        result = torch.empty(num_tokens, heads.num_heads, heads.value_width, dtype=heads.dtype)
        q, latent = _dense(q, heads.dtype), _dense(latent, heads.dtype)
        assert q.shape == (num_tokens, heads.num_heads, width)
        keys = _rows(latent.unsqueeze(1))
        self._kernel.forward(_rows(q), keys, keys, cache, _rows(result), num_tokens, self._span(PLAIN.span), 0)
        return result

    def _span(self, span: AttentionSpan) -> Span:
        found = self._spans.get(span)
        if found is None:
            found = self._spans[span] = Span(width=span.size or 0, is_chunked=span.is_chunked)
        return found

    def _cache(self, layer_cache: Tensor) -> Cache:
        heads = self.heads
        num_blocks, num_parts, two, heads_per_part, block_size, row_items = layer_cache.shape
        assert (two, num_parts * heads_per_part, block_size) == (2, heads.num_kv_heads, self.block_size)
        assert (layer_cache.dtype, row_items) == (heads.cached_dtype, heads.row_items)
        assert heads.key_width == heads.value_width
        item = layer_cache.element_size()
        block, part, value, head, token, _ = (item * stride for stride in layer_cache.stride())
        return Cache(layer_cache.data_ptr(), num_blocks, heads_per_part, block, part, value, head, token)

    def _latent_cache(self, layer_cache: Tensor) -> Cache:
        num_blocks, block_size, row_items = layer_cache.shape
        assert (block_size, row_items) == (self.block_size, self.heads.row_items)
        assert layer_cache.dtype == self.heads.cached_dtype
        block, token, _ = (layer_cache.element_size() * stride for stride in layer_cache.stride())
        return Cache(layer_cache.data_ptr(), num_blocks, 1, block, 0, 0, 0, token)


def _place(layer_cache: Tensor) -> tuple[object, ...]:
    """Return a key of everything that a Cache depends on."""
    return layer_cache.data_ptr(), layer_cache.shape, layer_cache.stride(), layer_cache.dtype


def _sinks(kind: AttentionKind, num_heads: int) -> int:
    """Return a pointer to the layer's sinks, 0 if it has none."""
    if kind.sinks is None:
        return 0
    assert kind.sinks.is_cpu
    assert (kind.sinks.dtype, kind.sinks.shape, kind.sinks.is_contiguous()) == (torch.float32, (num_heads,), True)
    return kind.sinks.data_ptr()


def _dense(rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the rows with a contiguous last dimension."""
    assert rows.dtype == dtype
    assert rows.is_cpu
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def _rows(rows: Tensor) -> Rows:
    """Describe rows [num_tokens, num_heads, width] to the kernel; the caller must keep them alive."""
    item, (token, head, _) = rows.element_size(), rows.stride()
    return Rows(rows.data_ptr(), item * token, item * head)
