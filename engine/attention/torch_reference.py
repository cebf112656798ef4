"""Attention in plain torch, on a CPU or a GPU: the reference for all other backends."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.attention import fp8_rows, int4_rows, int8_rows
from baton.engine.attention.kind import PLAIN, AttentionKind
from baton.engine.attention.span import AttentionSpan
from baton.engine.config import ModelConfig
from baton.engine.execution.batch import Batch
from baton.engine.kv.layout import torch_dtype
from baton.engine.kv.scales import UNSCALED, KVScales

GATHERED_BYTES = 8 << 20  # gathered at once, to stay in a CPU's cache during attention; 8 MiB measured fastest
MOST_SCORES = 1 << 27  # of a prompt at once: each has an element of the mask, and of the scores for some heads


@dataclass(frozen=True, slots=True)
class Segment:
    """Sequences computed together: one prefill chunk, or decodes of similar context length."""

    tokens: Tensor  # [num_seqs * query_len] int64: indices in the batch
    num_seqs: int
    blocks: Tensor  # [num_seqs * num_blocks] int64, padded with block 0
    positions: Tensor  # [num_seqs, query_len] int64
    context: int  # num_blocks * block_size

    def mask(self, span: AttentionSpan) -> Tensor:
        """Return which queries attend to which tokens, [num_seqs, 1, query_len, context] bool."""
        places, last = torch.arange(self.context, device=self.positions.device), self.positions[:, None, :, None]
        seen = places <= last
        if span.size is None:
            return seen
        first = last // span.size * span.size if span.is_chunked else last - span.size + 1
        return seen & (places >= first)


class TorchAttention:
    """Attention that gathers each sequence's blocks, with fp32 softmax; all query heads of a KV head together."""

    def __init__(
        self,
        scale: float,
        block_size: int,
        *,
        kv_lora_rank: int = 0,
        max_gathered_tokens: int = 2048,
        soft_cap: float | None = None,
    ) -> None:
        """scale: factor on the scores; block_size: tokens per block; kv_lora_rank: of MLA, otherwise 0.

        soft_cap: bound on the scores, by cap * tanh(score / cap).
        max_gathered_tokens: decodes are computed in groups of at most this many context tokens, or of one sequence.
        """
        self.scale = scale
        self.block_size = block_size
        self.kv_lora_rank = kv_lora_rank
        self.max_gathered_tokens = max_gathered_tokens
        self.soft_cap = soft_cap
        self._slots: tuple[Tensor, Tensor] = (torch.empty(0), torch.empty(0))  # block and offset of each new token
        self._segments: list[Segment] = []
        self._masks: dict[AttentionSpan, list[Tensor]] = {}  # of the segments, for the spans needed so far
        self._scratch = torch.empty(0)  # gathered blocks; reused, since new memory costs as much as gathering

    @classmethod
    def for_model(cls, config: ModelConfig, block_size: int) -> "TorchAttention":
        """Create the attention of a model."""
        width = 2 * config.num_kv_heads * config.head_dim if config.mla is None else config.mla.latent_dim
        token_bytes = width * torch_dtype(config.dtype).itemsize
        return cls(
            config.attention_scale,
            block_size,
            kv_lora_rank=config.mla.kv_lora_rank if config.mla else 0,
            max_gathered_tokens=max(GATHERED_BYTES // token_bytes, block_size),
            soft_cap=config.attention_soft_cap,
        )

    def plan(self, batch: Batch) -> None:
        """Compute, once for all layers, slots to write and blocks to gather."""
        self._slots = (batch.slot_mapping // self.block_size, batch.slot_mapping % self.block_size)
        self._segments = [self._decodes(batch, seqs) for seqs in self._decode_groups(batch)]
        self._masks = {}
        start = batch.num_decodes
        for seq in range(batch.num_decodes, batch.num_seqs):
            self._segments.append(self._prefill(batch, seq, start))
            start += batch.query_lens_list[seq]

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
        dtype = layer_cache.dtype
        if dtype == fp8_rows.DTYPE:
            layer_cache = layer_cache.view(torch.uint8)  # not every operation supports FP8 on every device
        else:
            scales = UNSCALED
        # [num_blocks, block_size, parts, heads of a part, head_dim]
        keys_by_slot, values_by_slot = layer_cache.permute(2, 0, 4, 1, 3, 5)
        num_kv_heads = layer_cache.shape[1] * layer_cache.shape[3]
        if k.shape[1]:
            written = (k.shape[0], *keys_by_slot.shape[2:-1], k.shape[-1])
            keys_by_slot.index_put_(self._slots, _cached(k.reshape(written), dtype, scales.key))
            values_by_slot.index_put_(self._slots, _cached(v.reshape(written), dtype, scales.value))
        by_head = layer_cache.permute(2, 1, 3, 0, 4, 5)  # [2, parts, heads of a part, num_blocks, block_size, head_dim]
        result = torch.empty_like(q)
        for segment, mask in zip(self._segments, self._masks_of(kind.span), strict=True):
            gathered = _uncached(self._gather(by_head, 3, segment.blocks), dtype, q.dtype)
            # 2 x [num_seqs, num_kv_heads, context_len, head_dim]
            keys, values = gathered.view(2, num_kv_heads, segment.num_seqs, -1, q.shape[2]).transpose(1, 2)
            queries, scale = q[segment.tokens], self.scale * scales.key
            result[segment.tokens] = self._attend(queries, keys, values, mask, scale, kind.sinks)
        return result if scales.value == 1.0 else result * scales.value

    def forward_latent(self, q: Tensor, latent: Tensor, layer_cache: Tensor, batch: Batch) -> Tensor:
        """Write the new latents and return the attention of one MLA layer.

        Values are the keys' first `kv_lora_rank` columns; the rest is cut off at the end.
        """
        assert self.kv_lora_rank, "the attention was not created for an MLA model; see for_model"
        layer_cache.index_put_(self._slots, _cached(latent, layer_cache.dtype))
        result = q.new_empty(q.shape[0], q.shape[1], self.kv_lora_rank)
        for segment, mask in zip(self._segments, self._masks_of(PLAIN.span), strict=True):
            gathered = _uncached(self._gather(layer_cache, 0, segment.blocks), layer_cache.dtype, q.dtype)
            keys = gathered.view(segment.num_seqs, 1, -1, q.shape[2])
            attended = self._attend(q[segment.tokens], keys, keys, mask, self.scale)
            result[segment.tokens] = attended[..., : self.kv_lora_rank]
        return result

    def _masks_of(self, span: AttentionSpan) -> list[Tensor]:
        if span not in self._masks:
            self._masks[span] = [segment.mask(span) for segment in self._segments]
        return self._masks[span]

    def _attend(
        self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, sinks: Tensor | None = None
    ) -> Tensor:
        """Attend q [num_tokens, num_heads, head_dim] to keys and values [num_seqs, num_kv_heads, context, head_dim].

        A long prompt is computed in slices of its queries, so that memory does not grow with their number.
        """
        at_once = max(1, MOST_SCORES // (q.shape[1] * keys.shape[2]))
        if len(keys) > 1 or len(q) <= at_once:
            return self._attend_at_once(q, keys, values, mask, scale, sinks)
        slices = [slice(start, start + at_once) for start in range(0, len(q), at_once)]
        return torch.cat(
            [self._attend_at_once(q[each], keys, values, mask[:, :, each], scale, sinks) for each in slices]
        )

    def _attend_at_once(
        self, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, sinks: Tensor | None
    ) -> Tensor:
        num_seqs, num_kv_heads, _, head_dim = keys.shape
        group, query_len = q.shape[1] // num_kv_heads, q.shape[0] // num_seqs
        queries = q.view(num_seqs, query_len, num_kv_heads, group, head_dim).permute(0, 2, 3, 1, 4)
        # A group's heads become more rows of one head's queries: keys and values are read once for all of them.
        rows = queries.reshape(num_seqs, num_kv_heads, group * query_len, head_dim)
        mask = mask if query_len == 1 else mask.repeat(1, 1, group, 1)
        if sinks is not None:
            sinks = sinks.view(num_kv_heads, group, 1).expand(-1, -1, query_len).flatten(1)
        attended = self._weighted(rows, keys, values, mask, scale, sinks)
        by_token = attended.view(num_seqs, num_kv_heads, group, query_len, head_dim).permute(0, 3, 1, 2, 4)
        return by_token.reshape(q.shape)

    def _weighted(
        self, rows: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, sinks: Tensor | None
    ) -> Tensor:
        """Return the weighted values of query rows [num_seqs, num_kv_heads, num_rows, head_dim].

        sinks: [num_kv_heads, num_rows].
        """
        if sinks is None and self.soft_cap is None:
            return F.scaled_dot_product_attention(rows, keys, values, attn_mask=mask, scale=scale)
        scores = (rows @ keys.mT).float() * scale
        if self.soft_cap is not None:
            scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
        scores.masked_fill_(~mask, -torch.inf)
        if sinks is None:
            return scores.softmax(-1).to(values.dtype) @ values
        with_sinks = torch.cat([scores, sinks[:, :, None].expand(len(scores), -1, -1, 1)], dim=-1)
        return with_sinks.softmax(-1)[..., :-1].to(values.dtype) @ values

    def _gather(self, cache: Tensor, dim: int, blocks: Tensor) -> Tensor:
        """Gather blocks along dimension `dim` of `cache`; the result is overwritten by the next call."""
        shape = (*cache.shape[:dim], blocks.shape[0], *cache.shape[dim + 1 :])
        size = torch.Size(shape).numel()
        if self._scratch.numel() < size or self._scratch.dtype != cache.dtype or self._scratch.device != cache.device:
            self._scratch = torch.empty(size, dtype=cache.dtype, device=cache.device)
        return torch.index_select(cache, dim, blocks, out=self._scratch[:size].view(shape))

    def _decode_groups(self, batch: Batch) -> list[list[int]]:
        """Group decodes by context length, so that little is padded, in groups of bounded size."""
        groups: list[list[int]] = []
        for seq in sorted(range(batch.num_decodes), key=batch.context_lens_list.__getitem__):
            if groups and (len(groups[-1]) + 1) * batch.context_lens_list[seq] <= self.max_gathered_tokens:
                groups[-1].append(seq)
            else:
                groups.append([seq])
        return groups

    def _decodes(self, batch: Batch, seqs: list[int]) -> Segment:
        device = batch.positions.device
        num_blocks = self._num_blocks(batch.context_lens_list[seqs[-1]])  # the longest is the last
        rows = torch.tensor(seqs, device=device)
        blocks = batch.block_tables[seqs, :num_blocks].flatten().to(device)
        return Segment(rows, len(seqs), blocks, batch.context_lens[rows, None] - 1, num_blocks * self.block_size)

    def _prefill(self, batch: Batch, seq: int, start: int) -> Segment:
        device = batch.positions.device
        query_len, context_len = batch.query_lens_list[seq], batch.context_lens_list[seq]
        num_blocks = self._num_blocks(context_len)
        positions = torch.arange(context_len - query_len, context_len, device=device)[None]
        tokens = torch.arange(start, start + query_len, device=device)
        blocks = batch.block_tables[seq, :num_blocks].to(device)
        return Segment(tokens, 1, blocks, positions, num_blocks * self.block_size)

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


def _cached(rows: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Convert new rows to a cache's dtype; FP8, with one scale for all rows, to its bytes."""
    if dtype == fp8_rows.DTYPE:
        return fp8_rows.encode(rows, scale).view(torch.uint8)
    if dtype == int4_rows.DTYPE:
        return int4_rows.encode(rows)
    return int8_rows.encode(rows) if dtype == torch.int8 else rows


def _uncached(rows: Tensor, cached: torch.dtype, dtype: torch.dtype) -> Tensor:
    """Convert cached rows for attention; FP8 rows, which every dtype holds exactly, without applying their scale."""
    if cached == fp8_rows.DTYPE:
        return rows.view(fp8_rows.DTYPE).to(dtype)
    if cached == int4_rows.DTYPE:
        return int4_rows.decode(rows, dtype)
    return int8_rows.decode(rows, dtype) if cached == torch.int8 else rows
