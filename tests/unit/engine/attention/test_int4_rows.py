"""KV rows in int4: rounding, special values, and equality with the compiled kernel's bits."""

import random

import pytest
import torch

from baton.engine.attention.factory import NativeAttention
from baton.engine.attention.heads import AttentionHeads
from baton.engine.attention.int4_rows import DTYPE, decode, encode
from baton.engine.kv.dtype import SCALE_BYTES, row_items
from baton.engine.kv.layout import KVCacheLayout
from tests.unit.engine.attention.test_int8_rows import INF, LEAST, NAN, hard_rows
from tests.unit.engine.attention_rig import LAYER, PagedHeads, Sequences


def test_an_element_is_off_by_half_a_step_at_most() -> None:
    rows = (
        torch.randn(200, 3, 40, generator=torch.Generator().manual_seed(0))
        * torch.logspace(-30, 30, 200)[:, None, None]
    )
    encoded = encode(rows)
    assert encoded.dtype == DTYPE
    assert encoded.shape == (200, 3, 20 + SCALE_BYTES) == (200, 3, row_items(40, "int4"))
    scale = encoded[..., 20:].contiguous().view(torch.float32)
    assert torch.allclose(scale.abs(), rows.abs().amax(-1, keepdim=True) / 8)
    steps = rows / scale
    assert steps.min() == -8
    errors = (decode(encoded, torch.float32) - rows).abs() / scale.abs()
    assert (errors[steps <= 7.5] <= 0.5001).all()
    assert 0.9 < errors.max() <= 1.0001  # numbers near the greatest one's negative
    assert torch.equal(decode(encoded, torch.bfloat16), decode(encoded, torch.float32).bfloat16())


def test_the_greatest_number_is_exact_and_others_round_to_even() -> None:
    for sign in (1, -1):
        row = sign * torch.tensor([8.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -8.0])
        expected = sign * torch.tensor([8.0, 0, 2, 2, 0, -2, -2, -7])  # of two, the positive one is exact
        if sign < 0:
            expected[[0, -1]] = torch.tensor([-7.0, 8])
        assert decode(encode(row), torch.float32).tolist() == expected.tolist()
    assert decode(encode(torch.tensor([-8.0, 7.6])), torch.float32).tolist() == [-8, 7]


def test_the_halves_of_a_byte_are_half_a_row_apart() -> None:
    codes = encode(torch.tensor([8.0, 0, 1, -7]))[:2]
    assert codes.tolist() == [0 | 7 << 4, 8 | 15 << 4]  # the scale is -1


def test_zero_rows_stay_zero_and_non_finite_rows_become_nan() -> None:
    for zeros in ([0.0, -0.0], [-0.0, -0.0], [LEAST, -3 * LEAST]):  # the scale of the last underflows to zero
        assert encode(torch.tensor(zeros)).tolist() == [0x88, 0, 0, 0, 0]
    for wrong in ([1.0, INF], [NAN, 2.0], [-INF, NAN]):
        assert decode(encode(torch.tensor(wrong)), torch.float32).isnan().all()


@pytest.mark.skipif(NativeAttention is None, reason="attention was not compiled when this was installed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [2, 30, 64, 80, 128])
def test_the_kernel_writes_the_same_bits(dtype: torch.dtype, width: int) -> None:
    from baton.engine.native.paged_attention import instruction_sets

    rows = hard_rows(width, dtype, random.Random(width))
    heads = AttentionHeads(num_heads=1, num_kv_heads=1, key_width=width, value_width=width, dtype=dtype, kv_dtype=DTYPE)
    sequences = Sequences(PagedHeads(heads, 16), [len(rows)], 0)
    tokens = sequences.tokens[0]
    tokens[:, 1], tokens[:, 2] = rows, rows.flip(0)
    chunks = {0: range(len(rows))}
    expected = sequences.pool(chunks)
    assert torch.equal(
        KVCacheLayout.layer_cache(expected, LAYER)[sequences.tables[0], 0, 0, 0].flatten(0, 1)[: len(rows)],
        encode(rows),
    )
    for backend in (*map(sequences.paged.native, instruction_sets()), sequences.paged.reference()):
        pool = sequences.pool({})
        sequences.attend(backend, chunks, pool)
        assert torch.equal(pool, expected)
