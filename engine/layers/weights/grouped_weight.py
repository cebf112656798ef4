"""Products with weights of small integers in groups (GPTQ, AWQ, GGUF and the like).

On a CPU they are native; otherwise the weight is dequantised in tiles, which torch multiplies.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.joined_tensors import join
from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix
from baton.engine.checkpoint.packed.stored_layout import PackedMatrix
from baton.engine.checkpoint.weights import Stored, Weights
from baton.engine.layers.weights.fp8_weight import StoredWeight
from baton.engine.layers.weights.native_groups import NativeGroups, has_native_product
from baton.engine.layers.weights.panel_weight import PairedWeight, can_have_panels

TILE_ITEMS = 1 << 21  # elements dequantised at once: their fp32 copy stays in a CPU's cache
TILE_ROWS = 64  # outputs of a tile are a multiple of this
ROW_TILE = 16  # a CPU's products are the same, bit for bit, for any number of rows that is a multiple of this


class GroupedWeight:
    """Weight in groups, multiplied with activations of the model's type; sums are in fp32.

    Without a native product, elements are dequantised in fp32 and rounded to the activations' type, or stay in fp32 on
    a CPU with neither products of panels nor instructions for bf16. On a CPU, a row's results do not depend on the
    other rows, except with AMX and without Baton's compiled products.
    """

    def __init__(self, matrix: GroupedMatrix, dtype: torch.dtype, order: Tensor | None = None) -> None:
        """dtype: that of activations and results; order: see NativeGroups."""
        self.native = NativeGroups(matrix, order=order) if has_native_product(matrix, dtype) else None
        self.matrix = matrix if self.native is None else self.native.matrix
        self.dtype = dtype
        self.out_features, self.in_features = matrix.shape
        rows = max(1, TILE_ITEMS // max(self.in_features, 1) // TILE_ROWS) * TILE_ROWS
        ends = [*range(0, self.out_features, rows), self.out_features]
        self._tiles = [slice(*pair) for pair in pairwise(ends)]
        sample = torch.empty(1, self.in_features, dtype=dtype, device=matrix.low.device)
        self._has_panels = can_have_panels(sample)
        is_exact = not sample.is_cuda and not (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())
        self._tile_dtype = torch.float32 if is_exact and not self._has_panels else dtype

    @property
    def values(self) -> Tensor:
        """The codes."""
        return self.matrix.low

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias, [num_tokens, out_features], for x [num_tokens, in_features]."""
        if self.native is not None:
            return self.native(x, bias)
        num_tokens = len(x)
        if not (x.is_cuda or self._has_panels):
            x = F.pad(x, (0, 0, 0, -num_tokens % ROW_TILE)).to(self._tile_dtype)
        tiles = (self.matrix.dequantised(tile, self._tile_dtype) for tile in self._tiles)
        whole = torch.cat([self._product(x, tile) for tile in tiles], 1)[:num_tokens].to(self.dtype)
        return whole if bias is None else whole + bias

    def _product(self, x: Tensor, tile: Tensor) -> Tensor:
        return PairedWeight(tile, is_owned=True)(x) if self._has_panels else F.linear(x, tile)


class PlainWeight:
    """Weight in the activations' type, among the parts of a joined one."""

    def __init__(self, weight: Tensor) -> None:
        """weight: [out_features, in_features], which is taken over."""
        self.panels = PairedWeight(weight, is_owned=True) if can_have_panels(weight) else None
        self.values = weight if self.panels is None else self.panels.panels

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias, [num_tokens, out_features], for x [num_tokens, in_features]."""
        if self.panels is not None:
            return self.panels(x, bias)
        padded = x if x.is_cuda else F.pad(x, (0, 0, 0, -len(x) % ROW_TILE))  # a row's bits do not depend on others
        return F.linear(padded, self.values, bias)[: len(x)]


class JoinedWeight:
    """Weights of the same input whose outputs are concatenated, as parts of a fused projection stored differently."""

    def __init__(self, parts: Sequence[StoredWeight]) -> None:
        self.parts = parts

    @property
    def values(self) -> Tensor:
        """Those of the first part."""
        return self.parts[0].values

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return x @ weight.T + bias, [num_tokens, out_features], for x [num_tokens, in_features]."""
        whole = torch.cat([part(x) for part in self.parts], 1)
        return whole if bias is None else whole + bias


def grouped_weight(weights: Weights, parts: Sequence[Stored]) -> GroupedWeight | JoinedWeight | None:
    """Concatenate stored matrices of which some are packed; None if none is, or if they are to become int8.

    Adjacent parts that are stored alike become one weight.
    """
    if weights.quantization == "int8" or not any(isinstance(part, PackedMatrix) for part in parts):
        return None
    found: list[GroupedMatrix | Tensor] = []
    for part in parts:
        matrix = part.read().to(weights.device) if isinstance(part, PackedMatrix) else join(weights, [part])
        last = found[-1] if found else None
        if isinstance(matrix, GroupedMatrix) and isinstance(last, GroupedMatrix) and last.can_join(matrix):
            found[-1] = GroupedMatrix.joined([last, matrix])
        else:
            found.append(matrix)
    joined = [
        GroupedWeight(each, weights.dtype) if isinstance(each, GroupedMatrix) else PlainWeight(each) for each in found
    ]
    if any(isinstance(each, GroupedWeight) and each.native is None for each in joined):
        weights.note_dequantised_in_products()
    first = joined[0]
    return first if len(joined) == 1 and isinstance(first, GroupedWeight) else JoinedWeight(joined)
