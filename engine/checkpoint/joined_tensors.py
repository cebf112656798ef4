"""Tensors of a checkpoint that are concatenated along dimension 0."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from baton.engine.checkpoint.stored_matrix import WHOLE, Part
from baton.engine.checkpoint.weights import Stored, Weights


def peek_all(
    weights: Weights, names: Sequence[str], sizes: Iterable[int], *inner: int, wanted: Iterable[Part] | None = None
) -> list[Stored]:
    """Return views of tensors of shape [size, *inner], or of the wanted part of each.

    Allocates nothing, so that wrong shapes are detected before memory is taken.
    """
    each = zip(names, sizes, wanted or [WHOLE] * len(names), strict=True)
    return [weights.peek(name, size, *inner, part=part) for name, size, part in each]


def stack(
    weights: Weights, names: Sequence[str], sizes: Iterable[int], *inner: int, wanted: Iterable[Part] | None = None
) -> Tensor:
    """Concatenate tensors of shape [size, *inner], or the wanted part of each, along dimension 0."""
    return join(weights, peek_all(weights, names, sizes, *inner, wanted=wanted))


def join(weights: Weights, parts: Sequence[Stored]) -> Tensor:
    """Concatenate stored tensors along dimension 0, on the model's device, without intermediate copies."""
    shape = (sum(part.shape[0] for part in parts), *parts[0].shape[1:])
    target = torch.empty(shape, dtype=weights.dtype, device=weights.device)
    start = 0
    for part in parts:
        end = start + part.shape[0]
        part.copy_to(target[start:end])
        start = end
    return target
