"""Matrix products with weights, in the form that is fastest where they run."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.stored_matrix import StoredMatrix
from baton.engine.checkpoint.weights import Weights, join, look, stack
from baton.engine.layers.fp8_weight import Fp8Weight, fp8_weight
from baton.engine.layers.int8_weight import Int8Weight, int8_weight
from baton.engine.layers.panel_weight import GatedWeights, PairedWeight, PanelWeight, can_gate, can_have_panels
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard

Projection = Callable[[Tensor], Tensor]  # [num_tokens, in_features] to [num_tokens, out_features]


class Linear:
    """`x @ weight.T + bias`. On a CPU the weight is laid out for its products once, and the plain copy is given up."""

    def __init__(
        self,
        weight: Tensor | Fp8Weight,
        bias: Tensor | None = None,
        *,
        packed: bool = True,
        quantization: str | None = None,
        is_owned: bool = False,
    ) -> None:
        """weight: [out_features, in_features]; bias: [out_features]. `packed` false keeps the plain layout on a CPU.

        quantization: "int8", see Int8Weight, or None; is_owned: whether nobody else has the weight's memory.
        """
        self.bias = bias
        self.form: Int8Weight | Fp8Weight | PanelWeight | None = None  # that has its own products
        self.is_packed = False  # for oneDNN
        if not isinstance(weight, Tensor):
            self.form, self.weight = weight, weight.values
        elif quantization == "int8":
            self.form = int8 = int8_weight(weight)
            self.weight = int8.panels if isinstance(int8, PanelWeight) else int8.packed
        elif packed and can_have_panels(weight):
            self.form = paired = PairedWeight(weight, is_owned=is_owned)
            self.weight = paired.panels
        else:
            self.is_packed = packed and _can_pack(weight)
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self.is_packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, in_features]. Returns [num_tokens, out_features]."""
        if self.form is not None:
            return self.form(x, self.bias)
        if self.is_packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return result
        return F.linear(x, self.weight, self.bias)


class SummedProjection:
    """A product whose input's columns are divided among ranks: each computes its part, and all have the sum."""

    def __init__(self, part: Projection, tensor: TensorRanks) -> None:
        self.part = part
        self.tensor = tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, our in_features]. Returns [num_tokens, out_features]."""
        return self.tensor.sum(self.part(x))


class GatheredProjection:
    """A product whose output's columns are divided among ranks; the first rank gets all of them."""

    def __init__(self, part: Projection, tensor: TensorRanks) -> None:
        self.part = part
        self.tensor = tensor

    def __call__(self, x: Tensor) -> Tensor:
        """x: [num_tokens, in_features]. Returns [num_tokens, out_features], at other ranks than the first their own."""
        return self.tensor.gather(self.part(x))


def gated_weights(pairs: Sequence[tuple[Linear, Linear]]) -> GatedWeights | None:
    """Gate-up and down projections of MLPs, where all of them can be computed in one call; of none None."""
    found: list[tuple[PanelWeight, PanelWeight]] = []
    for gate_up, down in pairs:
        first, second = gate_up.form, down.form
        if gate_up.bias is not None or down.bias is not None:
            return None
        if not (isinstance(first, PanelWeight) and isinstance(second, PanelWeight) and can_gate(first, second)):
            return None
        found.append((first, second))
    return GatedWeights(*zip(*found, strict=True)) if found else None


def summed(part: Projection, tensor: TensorRanks) -> Projection:
    """The whole product, of whose input each rank has some columns."""
    return part if tensor.shard.size == 1 else SummedProjection(part, tensor)


def gathered(part: Projection, tensor: TensorRanks) -> Projection:
    """The whole product, of whose output each rank has some columns."""
    return part if tensor.shard.size == 1 else GatheredProjection(part, tensor)


def load_linear(
    weights: Weights,
    prefix: str,
    in_features: int,
    out_features: int,
    *,
    bias: bool = False,
    rows: slice | None = None,
) -> Linear:
    """One projection, `prefix`.weight and, if it has one, `prefix`.bias; all rows of them, or these."""
    wanted = None if rows is None else [rows]
    return load_fused(weights, [prefix], in_features, [out_features], bias=bias, rows=wanted)


def load_fused(
    weights: Weights,
    prefixes: Sequence[str],
    in_features: int,
    out_features: Sequence[int],
    *,
    bias: bool = False,
    rows: Sequence[slice] | None = None,
) -> Linear:
    """Projections of one input as one product; their outputs lie side by side in the order given.

    A row of a weight is a column of its output: of each projection all rows are read, or those of `rows`.
    """
    wanted = [(part,) for part in rows] if rows is not None else None
    parts = look(weights, [f"{prefix}.weight" for prefix in prefixes], out_features, in_features, wanted=wanted)
    addend = stack(weights, [f"{prefix}.bias" for prefix in prefixes], out_features, wanted=wanted) if bias else None
    return make_linear(weights, parts, addend)


def load_partial(
    weights: Weights,
    prefix: str,
    in_features: int,
    out_features: int,
    columns: slice,
    shard: TensorShard,
    *,
    bias: bool = False,
) -> Linear:
    """What these columns of the input bring: all ranks' outputs add up to the whole. The first one has the bias."""
    parts = look(weights, [f"{prefix}.weight"], [out_features], in_features, wanted=[(slice(None), columns)])
    addend = stack(weights, [f"{prefix}.bias"], [out_features]) if bias else None
    return make_linear(weights, parts, addend if shard.rank == 0 else None)


def make_linear(weights: Weights, parts: Sequence[StoredMatrix], bias: Tensor | None = None) -> Linear:
    """Stored matrices one after another as one product: in FP8 as they are stored, where that can be computed with."""
    weight = fp8_weight(weights, parts)
    if weight is not None:
        return Linear(weight, bias)
    return Linear(join(weights, parts), bias, quantization=weights.quantization, is_owned=True)


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
