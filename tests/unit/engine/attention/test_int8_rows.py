"""KV rows in int8: rounding, special values, and equality with the compiled kernel's bits."""

import random

import pytest
import torch
from torch import Tensor

from baton.engine.attention.factory import NativeAttention
from baton.engine.attention.int8_rows import decode, encode
from baton.engine.kv.dtype import SCALE_BYTES
from baton.engine.kv.layout import KVCacheLayout
from tests.unit.engine.attention_rig import LAYER, PagedHeads, Sequences

INF, NAN = torch.inf, torch.nan
LEAST = 2.0**-149  # the smallest number above zero


def test_an_element_is_off_by_half_a_step_at_most() -> None:
    rows = (
        torch.randn(200, 3, 40, generator=torch.Generator().manual_seed(0))
        * torch.logspace(-30, 30, 200)[:, None, None]
    )
    encoded = encode(rows)
    assert encoded.dtype == torch.int8
    assert encoded.shape == (200, 3, 40 + SCALE_BYTES)
    steps = rows.abs().amax(-1, keepdim=True) / 127
    assert ((decode(encoded, torch.float32) - rows).abs() <= 0.5001 * steps).all()
    assert (encoded[..., :40].abs().amax(-1) == 127).all()
    assert torch.equal(decode(encoded, torch.bfloat16), decode(encoded, torch.float32).bfloat16())
    assert torch.equal(decode(encode(-rows), torch.float32), -decode(encoded, torch.float32))


def test_ties_round_to_even() -> None:
    items = encode(torch.tensor([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.4999, -126.5]))[:-SCALE_BYTES]
    assert items.tolist() == [127, 0, 2, 2, 0, -2, -2, 3, -126]


def test_zero_rows_stay_zero_and_non_finite_rows_become_nan() -> None:
    zeros = encode(torch.tensor([0.0, -0.0]))
    assert not zeros.any()
    assert encode(torch.tensor([LEAST, 63 * LEAST])).tolist() == [0] * 6  # the scale underflows to zero
    for wrong in ([1.0, INF], [NAN, 2.0], [-INF, NAN]):
        assert decode(encode(torch.tensor(wrong)), torch.float32).isnan().all()


def hard_rows(width: int, dtype: torch.dtype, draw: random.Random) -> Tensor:
    """Return [num_rows, width]: rows of every magnitude, with ties, at the limits of the dtype, and not finite."""
    generator = torch.Generator().manual_seed(draw.randrange(1000))
    rows = [torch.randn(width, generator=generator) * 10.0**power for power in range(-45, 39, 3)]
    rows += [torch.randint(-508, 509, (width,), generator=generator) / 4 for _ in range(40)]  # halves are ties
    rows += [
        torch.randint(-count, count + 1, (width,), generator=generator) * LEAST for count in (0, 1, 63, 64, 190, 300)
    ]
    for row in rows[28:68]:
        row[draw.randrange(width)] = 127
    for wrong in (INF, -INF, NAN, 3.4e38, -3.4e38):
        rows.append(torch.randn(width, generator=generator))
        rows[-1][draw.randrange(width)] = wrong
    return torch.stack(rows).to(dtype)


@pytest.mark.skipif(NativeAttention is None, reason="attention was not compiled when this was installed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 7, 64, 80, 128])
def test_the_kernel_writes_the_same_bits(dtype: torch.dtype, width: int) -> None:
    from baton.engine.attention.heads import AttentionHeads
    from baton.engine.native.paged_attention import instruction_sets

    rows = hard_rows(width, dtype, random.Random(width))
    heads = AttentionHeads(
        num_heads=1, num_kv_heads=1, key_width=width, value_width=width, dtype=dtype, kv_dtype=torch.int8
    )
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
