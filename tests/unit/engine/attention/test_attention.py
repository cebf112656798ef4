"""The torch attention against the definition, token by token."""

import math
import random

import pytest
import torch
from torch import Tensor

from baton.engine.attention import torch_reference
from baton.engine.attention.kind import AttentionKind
from baton.engine.attention.span import FULL, AttentionSpan
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.execution.batch import Batch
from baton.engine.kv.layout import KVCacheLayout

BLOCK_SIZE = 4
NUM_BLOCKS = 64
QUERY_LENS = [1, 1, 1, 1, 5, 9, 2]
CONTEXT_LENS = [1, 30, 4, 17, 5, 21, 16]


def make_batch() -> Batch:
    """Decodes and prefill chunks, with and without earlier context, in scattered blocks."""
    free = random.Random(0).sample(range(1, NUM_BLOCKS), NUM_BLOCKS - 1)
    tables = [[free.pop() for _ in range(-(-length // BLOCK_SIZE))] for length in CONTEXT_LENS]
    positions = [torch.arange(c - q, c) for q, c in zip(QUERY_LENS, CONTEXT_LENS, strict=True)]
    slots = [
        torch.tensor(t)[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for t, p in zip(tables, positions, strict=True)
    ]
    longest = max(map(len, tables))
    return Batch(
        token_ids=torch.zeros(sum(QUERY_LENS), dtype=torch.int64),
        positions=torch.cat(positions),
        slot_mapping=torch.cat(slots),
        query_starts=torch.tensor([0, *QUERY_LENS]).cumsum(0),
        context_lens=torch.tensor(CONTEXT_LENS),
        block_tables=torch.tensor([table + [0] * (longest - len(table)) for table in tables]),
        logits_indices=torch.tensor([0]),
        query_lens_list=QUERY_LENS,
        context_lens_list=CONTEXT_LENS,
        num_decodes=4,
    )


def context_of(cache: Tensor, batch: Batch, seq: int) -> Tensor:
    """The KV of a sequence in order, from [num_blocks, ..., block_size, width] to [context_len, ..., width]."""
    slots = [
        cache[batch.block_tables[seq, place // BLOCK_SIZE], ..., place % BLOCK_SIZE, :]
        for place in range(CONTEXT_LENS[seq])
    ]
    return torch.stack(slots)


def attend(q: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """One query head: q [width], keys and values [seen, width]."""
    weights = torch.softmax(keys.double() @ q.double() * scale, dim=0)
    return weights @ values.double()


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "num_parts"), [(4, 4, 1), (4, 4, 2), (6, 2, 2), (5, 1, 1)])
@pytest.mark.parametrize("max_gathered_tokens", [1, 40, 10_000])
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_every_token_sees_its_context_and_no_more(
    num_heads: int, num_kv_heads: int, num_parts: int, max_gathered_tokens: int, dtype: torch.dtype, atol: float
) -> None:
    torch.manual_seed(0)
    batch, width, scale = make_batch(), 8, 0.7
    pool = torch.randn(NUM_BLOCKS, num_parts, 3, 2, num_kv_heads // num_parts, BLOCK_SIZE, width).to(dtype)
    cache, before = KVCacheLayout.layer_cache(pool, 1), pool.clone()
    q = torch.randn(batch.num_tokens, num_heads, width).to(dtype)
    k, v = torch.randn(2, batch.num_tokens, num_kv_heads, width).to(dtype)
    backend = TorchAttention(scale, BLOCK_SIZE, max_gathered_tokens=max_gathered_tokens)
    backend.plan(batch)
    result = backend.forward(q, k, v, cache, batch)

    assert torch.equal(pool[:, :, [0, 2]], before[:, :, [0, 2]])
    blocks, offsets = batch.slot_mapping // BLOCK_SIZE, batch.slot_mapping % BLOCK_SIZE
    assert torch.equal(cache[blocks, :, 0, :, offsets].flatten(1, 2), k)
    assert torch.equal(cache[blocks, :, 1, :, offsets].flatten(1, 2), v)
    token = 0
    for seq, query_len in enumerate(QUERY_LENS):
        context = context_of(cache, batch, seq).transpose(1, 2).flatten(2, 3)  # [context_len, 2, num_kv_heads, width]
        for seen in range(CONTEXT_LENS[seq] - query_len + 1, CONTEXT_LENS[seq] + 1):
            for head in range(num_heads):
                keys, values = context[:seen, :, head * num_kv_heads // num_heads].unbind(1)
                expected = attend(q[token, head], keys, values, scale)
                torch.testing.assert_close(result[token, head].double(), expected, atol=atol, rtol=0)
            token += 1


@pytest.mark.parametrize("max_gathered_tokens", [1, 10_000])
@pytest.mark.parametrize("span", [FULL, AttentionSpan(1), AttentionSpan(6), AttentionSpan(8, is_chunked=True)])
@pytest.mark.parametrize("soft_cap", [None, 0.8])
@pytest.mark.parametrize("has_sinks", [False, True])
def test_spans_soft_caps_and_sinks_follow_their_definition(
    span: AttentionSpan, soft_cap: float | None, has_sinks: bool, max_gathered_tokens: int
) -> None:
    torch.manual_seed(0)
    batch, width, scale, num_heads, num_kv_heads = make_batch(), 8, 0.7, 6, 2
    pool = torch.randn(NUM_BLOCKS, 1, 1, 2, num_kv_heads, BLOCK_SIZE, width)
    cache = KVCacheLayout.layer_cache(pool, 0)
    q = torch.randn(batch.num_tokens, num_heads, width)
    k, v = torch.randn(2, batch.num_tokens, num_kv_heads, width)
    sinks = torch.randn(num_heads) if has_sinks else None
    backend = TorchAttention(scale, BLOCK_SIZE, max_gathered_tokens=max_gathered_tokens, soft_cap=soft_cap)
    backend.plan(batch)
    result = backend.forward(q, k, v, cache, batch, kind=AttentionKind(span, sinks))

    token = 0
    for seq, query_len in enumerate(QUERY_LENS):
        context = context_of(cache, batch, seq).transpose(1, 2).flatten(2, 3).double()
        for position in range(CONTEXT_LENS[seq] - query_len, CONTEXT_LENS[seq]):
            seen = [each for each in range(position + 1) if is_seen(span, position, each)]
            for head in range(num_heads):
                keys, values = context[seen, :, head * num_kv_heads // num_heads].unbind(1)
                scores = keys @ q[token, head].double() * scale
                scores = scores if soft_cap is None else soft_cap * torch.tanh(scores / soft_cap)
                total = scores.exp().sum() + (0 if sinks is None else sinks[head].double().exp())
                expected = scores.exp() @ values / total
                torch.testing.assert_close(result[token, head].double(), expected, atol=1e-5, rtol=0)
            token += 1


@pytest.mark.parametrize("has_sinks", [False, True])
def test_scores_of_a_long_prompt_are_computed_in_slices(monkeypatch: pytest.MonkeyPatch, has_sinks: bool) -> None:
    torch.manual_seed(0)
    batch, width, num_heads, num_kv_heads, longest = make_batch(), 8, 6, 2, 24
    pool = torch.randn(NUM_BLOCKS, 1, 1, 2, num_kv_heads, BLOCK_SIZE, width)
    q = torch.randn(batch.num_tokens, num_heads, width)
    k, v = torch.randn(2, batch.num_tokens, num_kv_heads, width)
    kind = AttentionKind(AttentionSpan(6), torch.randn(num_heads) if has_sinks else None)
    backend, sizes = TorchAttention(0.7, BLOCK_SIZE, max_gathered_tokens=1), []
    weighted = backend._weighted

    def counted(rows: Tensor, keys: Tensor, *others: object) -> Tensor:
        sizes.append(rows.shape[:3].numel() * keys.shape[2])
        return weighted(rows, keys, *others)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(backend, "_weighted", counted)
    results = []
    for most in (1 << 20, 4 * num_heads * longest):
        monkeypatch.setattr(torch_reference, "MOST_SCORES", most)
        backend.plan(batch)
        sizes.clear()
        results.append(backend.forward(q, k, v, KVCacheLayout.layer_cache(pool, 0), batch, kind=kind))
    assert max(sizes) == 4 * num_heads * longest
    torch.testing.assert_close(results[1], results[0])


def is_seen(span: AttentionSpan, position: int, other: int) -> bool:
    if span.size is None:
        return True
    return other // span.size == position // span.size if span.is_chunked else position - other < span.size


@pytest.mark.parametrize("max_gathered_tokens", [1, 10_000])
def test_latent_attention_reads_values_from_the_keys_first_columns(max_gathered_tokens: int) -> None:
    torch.manual_seed(1)
    batch, rank, rope_dim, num_heads, scale = make_batch(), 12, 4, 3, 1 / math.sqrt(7)
    pool = torch.randn(NUM_BLOCKS, 2, BLOCK_SIZE, rank + rope_dim)
    cache = KVCacheLayout.layer_cache(pool, 1)
    q, latent = (
        torch.randn(batch.num_tokens, num_heads, rank + rope_dim),
        torch.randn(batch.num_tokens, rank + rope_dim),
    )
    backend = TorchAttention(scale, BLOCK_SIZE, kv_lora_rank=rank, max_gathered_tokens=max_gathered_tokens)
    backend.plan(batch)
    result = backend.forward_latent(q, latent, cache, batch)

    assert torch.equal(cache.flatten(0, 1)[batch.slot_mapping], latent)
    assert result.shape == (batch.num_tokens, num_heads, rank)
    token = 0
    for seq, query_len in enumerate(QUERY_LENS):
        context = context_of(cache, batch, seq)
        for seen in range(CONTEXT_LENS[seq] - query_len + 1, CONTEXT_LENS[seq] + 1):
            for head in range(num_heads):
                expected = attend(q[token, head], context[:seen], context[:seen, :rank], scale)
                torch.testing.assert_close(result[token, head].double(), expected, atol=1e-5, rtol=0)
            token += 1
