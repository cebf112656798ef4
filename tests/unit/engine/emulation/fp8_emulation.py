"""Emulation of torch's FP8 products on a GPU: the same conditions and results as the CUDA code.

The conditions are those that torch checks when it selects a kernel, and those that torch leaves to cuBLAS: with block
scales, the number of tokens is a multiple of 4.
"""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor
from torch.nn.functional import ScalingType

from baton.engine.layers.weights import fp8_weight as fp8
from baton.engine.layers.weights.fp8_weight import Fp8Products

E4M3 = torch.float8_e4m3fn
BLOCK = 128
HOPPER = Fp8Products(of_rows=True, of_blocks=True, of_groups=True)


class EmulatedFp8:
    """Replacement of `F.scaled_mm` and `torch._scaled_grouped_mm` that records their calls."""

    def __init__(self) -> None:
        self.recipes: list[ScalingType] = []  # recipes of weights
        self.groups: list[list[int]] = []  # rows of each weight

    @classmethod
    def installed(cls, monkeypatch: pytest.MonkeyPatch) -> "EmulatedFp8":
        """Make CPUs run all FP8 products that a Hopper GPU supports, until the test ends."""
        stand_in = cls()
        monkeypatch.setattr(fp8, "products_on", lambda device: HOPPER)
        monkeypatch.setattr(F, "scaled_mm", stand_in.scaled_mm)
        monkeypatch.setattr(torch, "_scaled_grouped_mm", stand_in.scaled_grouped_mm)
        return stand_in

    def scaled_mm(
        self,
        tokens: Tensor,
        weight: Tensor,
        token_scales: Tensor,
        token_recipe: ScalingType,
        weight_scales: Tensor,
        weight_recipe: ScalingType,
        output_dtype: torch.dtype = torch.bfloat16,
        **others: Any,
    ) -> Tensor:
        assert not others, "no bias, and no fast accumulation"
        self.recipes.append(weight_recipe)
        if not len(tokens):  # torch calls no kernel
            return torch.empty(0, weight.shape[1], dtype=output_dtype)
        _check_operands(tokens, weight)
        num_tokens, size = tokens.shape
        num_outputs, stretches = weight.shape[1], -(-size // BLOCK)
        if weight_recipe == ScalingType.RowWise:
            assert token_recipe == ScalingType.RowWise
            _check_scales(token_scales, (num_tokens, 1), None)
            assert token_scales.stride(1) == 1
            _check_scales(weight_scales, (1, num_outputs), None)
            assert weight_scales.stride(1) == 1
            spread_tokens, spread_weight = token_scales, weight_scales
        else:
            assert token_recipe == ScalingType.BlockWise1x128
            assert num_tokens % 4 == 0
            _check_scales(token_scales, (num_tokens, stretches), num_tokens)
            spread_tokens = token_scales.repeat_interleave(BLOCK, 1)
            if weight_recipe == ScalingType.BlockWise128x128:
                rows = -(-stretches // 4) * 4
                _check_scales(weight_scales, (rows, num_outputs // BLOCK), rows)
                assert not num_outputs % BLOCK
                spread_weight = weight_scales.repeat_interleave(BLOCK, 0)[:size].repeat_interleave(BLOCK, 1)
            else:
                assert weight_recipe == ScalingType.BlockWise1x128
                _check_scales(weight_scales, (num_outputs, stretches), num_outputs)
                spread_weight = weight_scales.repeat_interleave(BLOCK, 1).T
        exact = (tokens.double() * spread_tokens) @ (weight.double() * spread_weight)
        return exact.to(output_dtype)

    def scaled_grouped_mm(
        self,
        tokens: Tensor,
        weights: Tensor,
        token_scales: Tensor,
        weight_scales: Tensor,
        *,
        offs: Tensor,
        out_dtype: torch.dtype,
    ) -> Tensor:
        count, _, num_outputs = weights.shape
        assert out_dtype == torch.bfloat16
        assert offs.dtype == torch.int32
        assert offs.shape == (count,)
        assert count < 1024
        for weight in weights:
            _check_operands(tokens, weight)
        assert token_scales.shape == (len(tokens),)
        assert token_scales.is_contiguous()
        assert weight_scales.shape == (count, num_outputs)
        assert weight_scales.stride(1) == 1
        assert token_scales.dtype == weight_scales.dtype == torch.float32
        starts = [0, *offs.tolist()]
        self.groups.append([end - start for start, end in itertools.pairwise(starts)])
        result = torch.full((len(tokens), num_outputs), torch.nan, dtype=out_dtype)  # stays in padding rows
        for index, (start, end) in enumerate(itertools.pairwise(starts)):
            rows = tokens[start:end].double() * token_scales[start:end, None]
            result[start:end] = (rows @ (weights[index].double() * weight_scales[index])).to(out_dtype)
        return result


def _check_operands(tokens: Tensor, weight: Tensor) -> None:
    """tokens: [num_tokens, size], row by row; weight: [size, num_outputs], column by column."""
    assert tokens.dtype == weight.dtype == E4M3
    assert tokens.shape[1] == weight.shape[0]
    assert tokens.stride() == (tokens.shape[1], 1)
    assert weight.stride() == (1, weight.shape[0])
    assert not tokens.shape[1] % 16
    assert not weight.shape[1] % 16


def _check_scales(scales: Tensor, shape: tuple[int, int], column_stride: int | None) -> None:
    assert scales.dtype == torch.float32
    assert scales.shape == shape
    if column_stride is not None:  # columns are contiguous
        assert scales.stride(0) == 1
        assert scales.stride(1) == column_stride or (shape[1] == 1 and scales.stride(1) == 1)
