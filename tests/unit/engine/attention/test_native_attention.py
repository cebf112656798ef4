"""The compiled attention against the torch reference, over random shapes."""

import random
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("baton.engine.native.paged_attention", reason="attention was not compiled when this was installed")

from baton.engine.attention import int4_rows
from baton.engine.attention.factory import attention_for
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.native import NativeAttention
from baton.engine.attention.span import AttentionSpan
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.config import MLAConfig
from baton.engine.native.paged_attention import instruction_sets
from tests.marks import each_value, slow_case, slow_except
from tests.unit.engine.attention_rig import (
    LAYER,
    Chunks,
    PagedHeads,
    Sequences,
    model_config,
    random_chunks,
    random_kind,
)

DTYPES = (torch.float32, torch.bfloat16)
KV_DTYPES = (None, torch.int8, int4_rows.DTYPE)
QUANTISED = pytest.mark.parametrize("kv_dtype", KV_DTYPES)
MLA = MLAConfig(kv_lora_rank=24, q_lora_rank=None, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16)
INSTRUCTIONS = pytest.mark.parametrize("instructions", instruction_sets())


def random_heads(draw: random.Random, dtype: torch.dtype, kv_dtype: torch.dtype | None) -> PagedHeads:
    """Multi-head, grouped-query or latent."""
    kind: dict[str, Any] = {"dtype": dtype, "kv_dtype": kv_dtype}
    block_size = draw.choice((8, 16, 32, 64))
    is_int4 = kv_dtype == int4_rows.DTYPE
    if draw.random() < 0.25 and not is_int4:
        rank, rope_dim = draw.choice(((512, 64), (24, 8), (13, 4)))
        latent = AttentionHeads(
            num_heads=draw.randint(1, 16), num_kv_heads=1, key_width=rank + rope_dim, value_width=rank, **kind
        )
        return PagedHeads(latent, block_size)
    num_kv_heads, group = draw.choice((1, 2, 4, 6)), draw.randint(1, 16)
    width = draw.choice((64, 128, 80, 96, 256, 8, 10 if is_int4 else 7))
    heads = AttentionHeads(
        num_heads=num_kv_heads * group, num_kv_heads=num_kv_heads, key_width=width, value_width=width, **kind
    )
    return PagedHeads(heads, block_size, draw.choice((1, num_kv_heads)))


def check(paged: PagedHeads, chunks: Chunks, instructions: str, seed: int) -> None:
    """Check that the kernel and the reference write equal KV and return close results."""
    sequences = Sequences(paged, [places.stop for places in chunks.values()], seed)
    before = {seq: range(places.start) for seq, places in chunks.items()}
    pool = sequences.pool(before, unseen=float("nan"))  # unseen KV must not affect results
    expected_pool = sequences.pool(before)
    if not paged.heads.is_quantised:
        expected_pool = expected_pool.float()
    result = sequences.attend(paged.native(instructions), chunks, pool)
    expected = sequences.attend(paged.in_float32().reference(), chunks, expected_pool, torch.float32)
    assert_same_where_written(pool, expected_pool, sequences.pool({}, unseen=float("nan")), sequences.pool({}))
    assert result.dtype == paged.heads.dtype
    if paged.heads.dtype == torch.float32:
        torch.testing.assert_close(result, expected, atol=3e-6, rtol=3e-6)
    else:  # a result and its weights have 8 bits each
        torch.testing.assert_close(result.float(), expected, atol=2**-7, rtol=2**-7)


def assert_same_where_written(pool: Tensor, expected: Tensor, unwritten: Tensor, zeros: Tensor) -> None:
    """Assert that the written rows are as expected, and that no other row is expected. zeros: a pool without rows."""
    rows, never = pool.flatten(0, -2), unwritten.flatten(0, -2)[:1]
    is_written = ~rows.isnan().all(-1) if pool.is_floating_point() else (rows != never).any(-1)
    assert torch.equal(rows[is_written].to(expected.dtype), expected.flatten(0, -2)[is_written])
    assert torch.equal(expected.flatten(0, -2)[~is_written], zeros.flatten(0, -2)[~is_written].to(expected.dtype))


@INSTRUCTIONS
@QUANTISED
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", slow_except(range(12), {0, 1, 2}))
def test_results_agree_with_the_reference(
    instructions: str, dtype: torch.dtype, kv_dtype: torch.dtype | None, seed: int
) -> None:
    draw = random.Random(seed)
    check(random_heads(draw, dtype, kv_dtype), random_chunks(draw, 1200), instructions, seed)


@INSTRUCTIONS
@QUANTISED
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", slow_except(range(20, 40), {20, 21, 22, 23}))
def test_kinds_of_attention_agree_with_the_reference(
    instructions: str, dtype: torch.dtype, kv_dtype: torch.dtype | None, seed: int
) -> None:
    draw = random.Random(seed)
    paged = random_heads(draw, dtype, kv_dtype)
    while paged.is_latent:
        paged = random_heads(draw, dtype, kv_dtype)
    check(random_kind(paged, draw), random_chunks(draw, 1200), instructions, seed)


@QUANTISED
def test_tokens_behind_the_window_are_not_read(kv_dtype: torch.dtype | None) -> None:
    """Their blocks may hold anything, such as NaN."""
    heads = AttentionHeads(
        num_heads=4,
        num_kv_heads=2,
        key_width=64,
        value_width=64,
        dtype=torch.float32,
        kv_dtype=kv_dtype,
    )
    paged = PagedHeads(heads, 16, span=AttentionSpan(100), has_sinks=True, soft_cap=2.0)
    sequences, chunks = Sequences(paged, [900], 8), {0: range(890, 900)}
    native = paged.native()
    expected = sequences.attend(native, chunks, sequences.pool({0: range(890)}))
    pool = sequences.pool({0: range(890)})
    behind = sequences.pool({}, unseen=float("nan"))
    for place in range(890 - 99):  # the first new token attends to the 99 tokens before it
        block, offset = sequences.tables[0][place // 16], place % 16
        pool[block, ..., offset, :] = behind[block, ..., offset, :]
    assert torch.equal(sequences.attend(native, chunks, pool), expected)


@each_value
@QUANTISED
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("context_len", [1, 2, 255, 256, 257, 512, 513, 2049, slow_case(8191), slow_case(8192)])
def test_any_context_length_agrees_with_the_reference(
    dtype: torch.dtype, kv_dtype: torch.dtype | None, context_len: int
) -> None:
    heads = AttentionHeads(
        num_heads=4,
        num_kv_heads=2,
        key_width=64,
        value_width=64,
        dtype=dtype,
        kv_dtype=kv_dtype,
    )
    paged = PagedHeads(heads, 16)
    for query_len in {1, min(40, context_len)}:
        check(paged, {0: range(context_len - query_len, context_len)}, instruction_sets()[0], context_len)


@INSTRUCTIONS
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_dominant_key_gets_all_the_weight(instructions: str, dtype: torch.dtype) -> None:
    """All other keys have no weight, nor have whole splits of the context before it."""
    heads = AttentionHeads(num_heads=2, num_kv_heads=1, key_width=64, value_width=64, dtype=dtype)
    paged = PagedHeads(heads, 16)
    sequences = Sequences(paged, [700], 3)
    tokens = sequences.tokens[0]
    tokens[:, 2] *= torch.linspace(0.001, 1, 700)[:, None].to(dtype)
    tokens[600, 2] = 60 * tokens[699, 0]
    chunks = {0: range(699, 700)}
    pool = sequences.pool({0: range(699)})
    result = sequences.attend(paged.native(instructions), chunks, pool)
    assert torch.equal(result[0, 0], tokens[600, 3])
    expected = sequences.attend(paged.in_float32().reference(), chunks, pool.float(), torch.float32)
    torch.testing.assert_close(result.float(), expected, atol=2**-7, rtol=2**-7)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("mla", [None, MLA])
def test_models_on_cpus_use_the_native_kernel(mla: MLAConfig | None, dtype: str) -> None:
    config = model_config(mla, dtype)
    chosen = attention_for(config, 16, torch.device("cpu"))
    assert isinstance(chosen, NativeAttention)
    assert isinstance(attention_for(config, 16, torch.device("meta")), TorchAttention)
    paged = PagedHeads(chosen.heads, 16)
    chunks = {0: range(6, 20)}
    sequences = Sequences(paged, [20], 0)
    pool = sequences.pool({0: range(6)})
    reference = TorchAttention.for_model(config, 16)
    results: list[Tensor] = [sequences.attend(each, chunks, pool.clone()) for each in (chosen, reference)]
    torch.testing.assert_close(*results, atol=2e-6 if dtype == "float32" else 2e-2, rtol=0)


def test_invalid_arguments_are_refused() -> None:
    heads = AttentionHeads(num_heads=2, num_kv_heads=1, key_width=8, value_width=8, dtype=torch.float32)
    paged = PagedHeads(heads, 8)
    with pytest.raises(ValueError, match="instruction set 'mmx'"):
        paged.native("mmx")
    sequences, chunks = Sequences(paged, [20], 0), {0: range(10, 20)}
    pool = sequences.pool({0: range(10)})
    native = paged.native()
    with pytest.raises(ValueError, match="not the one that was planned for"):
        native.forward(torch.zeros(3, 2, 8), *torch.zeros(2, 3, 1, 8), pool[:, :, LAYER], sequences.batch(chunks))
    for beyond in (sequences.num_blocks, -1, 1 << 40):
        sequences.tables[0][1] = beyond
        with pytest.raises(ValueError, match="block"):
            sequences.attend(native, chunks, pool)
