"""Rounding of plain weights to 4 bits in groups."""

import math

import torch
from torch import Tensor

from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix, packed

GROUP = 128  # input columns that share a scale and a zero point
MIN_GROUP = 16  # a weight whose columns only smaller groups divide stays plain
LAST = 15  # largest code
ROWS_AT_ONCE = 256  # rows quantised at once, to avoid an fp32 copy of the weight
TINY = torch.finfo(torch.bfloat16).tiny


def group_of(in_features: int) -> int | None:
    """Return the columns of a group for a weight with so many columns; None if it must stay plain."""
    width = math.gcd(in_features, GROUP)
    return width if width >= MIN_GROUP else None


def int4_matrix(weight: Tensor, group: int) -> GroupedMatrix:
    """Round a weight [out_features, in_features] to the nearest of 16 equally spaced numbers in each group's range."""
    groups = weight.reshape(len(weight), -1, group)
    parts = [_quantised(rows.float()) for rows in torch.split(groups, ROWS_AT_ONCE)]
    return GroupedMatrix.joined(parts)


def _quantised(groups: Tensor) -> GroupedMatrix:
    """Quantise [rows, groups, columns] fp32; 0 stays 0."""
    low, high = groups.amin(2, keepdim=True).clamp_(max=0), groups.amax(2, keepdim=True).clamp_(min=0)
    scales = ((high - low) / LAST).clamp_(min=TINY).bfloat16()
    zeros = (-low / scales.float()).round_().clamp_(0, LAST)
    codes = (groups / scales.float() + zeros).round_().clamp_(0, LAST)
    return GroupedMatrix(
        low=packed(codes.to(torch.uint8).flatten(1), 4),
        bits=4,
        scales=scales.squeeze(2),
        zeros=zeros.to(torch.uint8).squeeze(2),
    )
