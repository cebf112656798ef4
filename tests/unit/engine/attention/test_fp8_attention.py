"""Attention over KV in FP8: torch compared with rounded KV, FlashInfer's emulation compared with torch."""

import logging
import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from baton.engine.attention import fp8_rows
from baton.engine.attention.factory import attention_for
from baton.engine.attention.flashinfer import FlashInferAttention, is_made_for
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.torch_reference import TorchAttention
from baton.engine.errors import UnsupportedModel
from baton.engine.kv.scales import UNSCALED, KVScales
from tests.marks import each_value
from tests.unit.engine.attention.test_native_attention import MLA
from tests.unit.engine.attention_rig import PagedHeads, Sequences, model_config, random_chunks
from tests.unit.engine.emulation.flashinfer_emulation import EMULATION

CPU, GPU = torch.device("cpu"), torch.device("cuda:1")
SCALES = pytest.mark.parametrize("scales", [UNSCALED, KVScales(0.011, 0.3), KVScales(1.7, 0.02)])
KINDS = pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "num_parts"), [(8, 2, 1), (8, 4, 2), (4, 4, 4), (6, 1, 1)]
)


def in_fp8(num_heads: int, num_kv_heads: int, dtype: torch.dtype = torch.float32) -> AttentionHeads:
    return AttentionHeads(
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        key_width=16,
        value_width=16,
        dtype=dtype,
        kv_dtype=torch.float8_e4m3fn,
    )


def as_bytes(pool: Tensor) -> Tensor:
    return pool.view(torch.uint8)


@each_value
@SCALES
@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(3))
def test_torch_attention_agrees_with_attention_to_rounded_kv(
    num_heads: int, num_kv_heads: int, num_parts: int, scales: KVScales, dtype: torch.dtype, seed: int
) -> None:
    draw = random.Random(seed)
    chunks, block_size = random_chunks(draw, 300), draw.choice((4, 16))
    before = {seq: range(places.start) for seq, places in chunks.items()}
    lens = [places.stop for places in chunks.values()]
    paged = PagedHeads(in_fp8(num_heads, num_kv_heads, dtype), block_size, num_parts, scales)
    sequences = Sequences(paged, lens, seed)
    pool = sequences.pool(before)
    result = sequences.attend(paged.reference(), chunks, pool)
    assert result.dtype == dtype
    assert torch.equal(as_bytes(pool), as_bytes(sequences.pool({seq: range(len_) for seq, len_ in enumerate(lens)})))

    exact = Sequences(replace(paged, heads=replace(paged.heads, kv_dtype=None, dtype=torch.float32)), lens, seed)
    for mine, tokens in zip(sequences.tokens, exact.tokens, strict=True):
        tokens[:, :num_heads] = mine[:, :num_heads].float()
        keys, values = mine[:, num_heads:].float().chunk(2, dim=1)
        tokens[:, num_heads : num_heads + num_kv_heads] = fp8_rows.encode(keys, scales.key).float() * scales.key
        tokens[:, num_heads + num_kv_heads :] = fp8_rows.encode(values, scales.value).float() * scales.value
    expected = exact.attend(exact.paged.reference(), chunks, exact.pool(before))
    tolerance = 3e-6 if dtype == torch.float32 else 2**-7
    size = expected.abs().max()
    torch.testing.assert_close(result.float() / size, expected / size, atol=tolerance, rtol=tolerance)


@each_value
@SCALES
@KINDS
@pytest.mark.parametrize("seed", range(4))
def test_flashinfer_agrees_with_torch(
    num_heads: int, num_kv_heads: int, num_parts: int, scales: KVScales, seed: int
) -> None:
    draw = random.Random(seed)
    chunks = random_chunks(draw, 400)
    paged = PagedHeads(in_fp8(num_heads, num_kv_heads), draw.choice((4, 16)), num_parts, scales)
    sequences = Sequences(paged, [places.stop for places in chunks.values()], seed)
    before = {seq: range(places.start) for seq, places in chunks.items()}
    pool, expected_pool = sequences.pool(before), sequences.pool(before)
    backend = FlashInferAttention(paged.scale, paged.block_size, paged.heads, CPU, num_parts, EMULATION)
    result = sequences.attend(backend, chunks, pool)
    expected = sequences.attend(paged.reference(), chunks, expected_pool)
    torch.testing.assert_close(result, expected, atol=3e-6, rtol=3e-6)
    assert torch.equal(as_bytes(pool), as_bytes(expected_pool))


def test_scales_do_not_affect_kv_in_other_dtypes() -> None:
    """A checkpoint may have scales even if its KV is not stored in FP8."""
    chunks, scales = {0: range(3, 4), 1: range(20)}, KVScales(0.1, 7.0)
    usual = PagedHeads(replace(in_fp8(4, 2), kv_dtype=None), 4)
    sequences, scaled = Sequences(usual, [4, 20], 0), Sequences(replace(usual, scales=scales), [4, 20], 0)
    backends = [
        usual.reference(),
        usual.native(),
        FlashInferAttention(usual.scale, usual.block_size, usual.heads, CPU, 1, EMULATION),
    ]
    for backend in backends:
        pools = [sequences.pool({0: range(3)}) for _ in range(2)]
        results = [each.attend(backend, chunks, pool) for each, pool in zip((sequences, scaled), pools, strict=True)]
        assert torch.equal(*results)
        assert torch.equal(*pools)


def test_the_factory_picks_a_backend_for_fp8(caplog: pytest.LogCaptureFixture) -> None:
    config = model_config(None, "bfloat16", 64)
    with caplog.at_level(logging.WARNING):
        assert isinstance(attention_for(config, 16, CPU, "fp8"), TorchAttention)
    assert "fp8 KV is for GPUs" in caplog.text
    assert is_made_for(AttentionHeads.of(config, torch.float8_e4m3fn))
    assert not is_made_for(AttentionHeads.of(config, torch.int8))
    for device in (CPU, GPU):
        with pytest.raises(UnsupportedModel, match=r"'fp8_e4m3' is not supported .*fp8 are not for multi-head latent"):
            attention_for(model_config(MLA, "bfloat16"), 16, device, "fp8_e4m3")
