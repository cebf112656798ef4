"""KV rows in FP8: rounding and saturation."""

import torch

from baton.engine.attention.fp8_rows import DTYPE, MOST, encode

INF, NAN = torch.inf, torch.nan


def test_numbers_of_the_format_are_kept_exactly() -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(DTYPE).float()
    for dtype in (torch.float32, torch.bfloat16):
        for scale in (1.0, 0.25):
            rows = (numbers * scale).to(dtype)
            torch.testing.assert_close(encode(rows, scale).float(), numbers, atol=0, rtol=0, equal_nan=True)


def test_an_element_is_off_by_a_sixteenth_at_most() -> None:
    rows = torch.randn(200, 3, 40, generator=torch.Generator().manual_seed(0))
    for scale in (1.0, 0.013, 3.7):
        found = encode(rows, scale).float() * scale
        least = scale * 2.0**-10  # half of the smallest number above zero
        assert ((found - rows).abs() <= rows.abs() / 16 * 1.0001 + least).all()


def test_ties_round_to_even() -> None:
    assert encode(torch.tensor([17.0, 19.0, -17.0, 1.0625, 1.1875]), 1.0).float().tolist() == [16, 20, -16, 1, 1.25]


def test_overflows_saturate() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        rows = torch.tensor([450.0, 1e4, INF, -INF, -1e30, NAN], dtype=dtype)
        found = encode(rows, 1.0).float()
        assert found[:5].tolist() == [MOST, MOST, MOST, -MOST, -MOST]
        assert found[5].isnan()
    assert encode(torch.tensor([100.0, -100.0]), 0.1).float().tolist() == [MOST, -MOST]


def test_bits_depend_on_the_number_alone() -> None:
    """The dtype, the memory layout and the number of tokens do not change bits."""
    rows = torch.randn(50, 6, 8, generator=torch.Generator().manual_seed(1)).bfloat16()
    for scale in (1.0, 0.07):
        whole = encode(rows[:, 1:4], scale).view(torch.uint8)
        assert whole.stride(-1) == 1
        assert torch.equal(encode(rows.float()[:, 1:4], scale).view(torch.uint8), whole)
        assert torch.equal(encode(rows[7:8, 1:4], scale).view(torch.uint8), whole[7:8])
