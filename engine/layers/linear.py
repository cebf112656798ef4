"""Linear layers, in the weight layout that is fastest on their device."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.checkpoint.joined_tensors import join, peek_all, stack
from baton.engine.checkpoint.placement import WeightForm
from baton.engine.checkpoint.weights import Stored, Weights
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.layers.weights.column_part import ColumnPart
from baton.engine.layers.weights.forms import form_of, unknown_layout, weight_of
from baton.engine.layers.weights.fp8_weight import StoredWeight, fp8_weight
from baton.engine.layers.weights.grouped_weight import GroupedWeight, grouped_weight
from baton.engine.layers.weights.int4_weight import group_of, int4_matrix
from baton.engine.layers.weights.int8_weight import int8_weight
from baton.engine.layers.weights.panel_weight import GatedWeights, PairedWeight, PanelWeight, can_gate, can_have_panels
from baton.engine.parallel.tensor_parallel import TensorRanks
from baton.engine.parallel.tensor_shard import TensorShard

Projection = Callable[[Tensor], Tensor]  # [num_tokens, in_features] to [num_tokens, out_features]
Addend = Callable[[Tensor, Tensor], Tensor]  # of a Linear's input and output, which it changes in place and returns


class Linear:
    """`x @ weight.T + bias`. On a CPU the weight is repacked once, and the plain copy is dropped."""

    def __init__(
        self,
        weight: Tensor | StoredWeight,
        bias: Tensor | None = None,
        *,
        packed: bool = True,
        quantization: str | None = None,
        is_owned: bool = False,
    ) -> None:
        """weight: [out_features, in_features]; bias: [out_features]. `packed` false keeps the plain layout on a CPU.

        quantization: "int8", see Int8Weight, "int4", see GroupedWeight, or None; is_owned: no other object uses the
        weight's memory.
        """
        self.bias = bias
        self.source: LinearSource | None = None  # set if adapters may change the product
        self.addend: Addend | None = None  # of adapters; None: they are not enabled
        self.form: StoredWeight | PanelWeight | None = None  # weight with its own product
        self.is_packed = False  # in oneDNN's layout
        if not isinstance(weight, Tensor):
            self.form, self.weight = weight, weight.values
        elif quantization == "int4" and (group := group_of(weight.shape[1])) is not None:
            self.form = grouped = GroupedWeight(int4_matrix(weight, group), weight.dtype)
            self.weight = grouped.values
        elif quantization == "int8":
            self.form = int8 = int8_weight(weight)
            self.weight = int8.values
        elif packed and can_have_panels(weight):
            self.form = paired = PairedWeight(weight, is_owned=is_owned)
            self.weight = paired.panels
        else:
            self.is_packed = packed and _can_pack(weight)
            self.weight = torch.ops.mkldnn._reorder_linear_weight(weight) if self.is_packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out_features] for x [num_tokens, in_features]."""
        output = self._product(x)
        return output if self.addend is None else self.addend(x, output)

    @property
    def weight_form(self) -> WeightForm:
        """The weight as plain data. Raises UnsupportedModel for one in oneDNN's layout."""
        if self.is_packed:
            raise unknown_layout()
        return form_of(self.weight if self.form is None else self.form)

    def _product(self, x: Tensor) -> Tensor:
        if self.form is not None:
            return self.form(x, self.bias)
        if self.is_packed:
            result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self.bias, "none", [], "")
            return result
        return F.linear(x, self.weight, self.bias)


class SummedProjection:
    """Row-parallel projection: the input's columns are divided among ranks, and all ranks get the sum."""

    def __init__(self, part: Projection, tensor: TensorRanks) -> None:
        self.part = part
        self.tensor = tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out_features] for x [num_tokens, this rank's in_features]."""
        return self.tensor.sum(self.part(x))


class GatheredProjection:
    """Column-parallel projection: the output's columns are divided among ranks and gathered on rank 0."""

    def __init__(self, part: Projection, tensor: TensorRanks) -> None:
        self.part = part
        self.tensor = tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return [num_tokens, out_features] for x [num_tokens, in_features]; on other ranks only their own columns."""
        return self.tensor.gather(self.part(x))


def gated_weights(pairs: Sequence[tuple[Linear, Linear]]) -> GatedWeights | None:
    """Combine the gate-up and down projections of MLPs for one native call; None if not all of them support it."""
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
    """Return the whole product, if each rank has some columns of the input (row-parallel)."""
    return part if tensor.shard.size == 1 else SummedProjection(part, tensor)


def gathered(part: Projection, tensor: TensorRanks) -> Projection:
    """Return the whole product, if each rank has some columns of the output (column-parallel)."""
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
    """Load the projection `prefix`.weight, with `bias` also `prefix`.bias; only `rows` of them, default: all."""
    wanted = None if rows is None else [rows]
    return load_fused(weights, [prefix], in_features, [out_features], bias=bias, rows=wanted)


def load_head(weights: Weights, hidden_size: int, vocab_size: int, rows: slice) -> Linear:
    """Load some rows of the output layer `lm_head`, which is not rounded to 4 bits: it determines the tokens most."""
    stored = peek_all(weights, ["lm_head.weight"], [vocab_size], hidden_size, wanted=[(rows,)])
    return make_linear(weights, stored, quantization=head_quantization(weights.quantization))


def head_quantization(quantization: str | None) -> str | None:
    """Return the quantization of the output layer."""
    return None if quantization == "int4" else quantization


def load_fused(
    weights: Weights,
    prefixes: Sequence[str],
    in_features: int,
    out_features: Sequence[int],
    *,
    bias: bool = False,
    rows: Sequence[slice] | None = None,
) -> Linear:
    """Load projections of the same input as one product; their outputs are concatenated in the given order.

    Reads all rows of each projection, or only its slice in `rows`; a weight's row is an output column.
    """
    wanted = [(part,) for part in rows] if rows is not None else None
    parts = peek_all(weights, [f"{prefix}.weight" for prefix in prefixes], out_features, in_features, wanted=wanted)
    addend = stack(weights, [f"{prefix}.bias" for prefix in prefixes], out_features, wanted=wanted) if bias else None
    linear = make_linear(weights, parts, addend, quantization=weights.quantization)
    each = zip(prefixes, out_features, rows or [slice(None)] * len(prefixes), strict=True)
    linear.source = LinearSource([ProjectionRows(*part) for part in each], in_features, slice(None))
    return linear


def load_slices(
    weights: Weights,
    prefix: str,
    in_features: int,
    out_features: int,
    rows: Sequence[slice],
    *,
    bias: bool = False,
) -> Linear:
    """Load slices of the rows of `prefix`.weight, in which a checkpoint stores several projections as one.

    Their outputs are concatenated in the given order; adjacent slices are read as one.
    """
    return load_rows(weights, [ProjectionRows(prefix, out_features, each) for each in rows], in_features, bias=bias)


def load_rows(
    weights: Weights, rows: Sequence[ProjectionRows], in_features: int, *, bias: bool = False, is_exact: bool = False
) -> Linear:
    """Load rows of projections of the same input; their outputs are concatenated in the given order.

    Adjacent rows are read as one. is_exact: plain weights are not quantised.
    """
    each = _merged(rows)
    wanted, sizes = [(part.rows,) for part in each], [part.out_features for part in each]
    parts = peek_all(weights, [f"{part.name}.weight" for part in each], sizes, in_features, wanted=wanted)
    addend = stack(weights, [f"{part.name}.bias" for part in each], sizes, wanted=wanted) if bias else None
    linear = make_linear(weights, parts, addend, quantization=None if is_exact else weights.quantization)
    linear.source = LinearSource(rows, in_features, slice(None))
    return linear


def _merged(rows: Sequence[ProjectionRows]) -> list[ProjectionRows]:
    merged = [rows[0]]
    for each in rows[1:]:
        last = merged[-1]
        if (each.name, each.rows.start) == (last.name, last.rows.stop):
            merged[-1] = replace(last, rows=slice(last.rows.start, each.rows.stop))
        else:
            merged.append(each)
    return merged


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
    """Load a projection of some input columns: the ranks' outputs add up to the whole. Rank 0 has the bias."""

    def read(wanted: slice) -> list[Stored]:
        return peek_all(weights, [f"{prefix}.weight"], [out_features], in_features, wanted=[(slice(None), wanted)])

    part = ColumnPart.of(read, in_features, columns)
    addend = stack(weights, [f"{prefix}.bias"], [out_features]) if bias else None
    addend = addend if shard.rank == 0 else None
    linear = make_linear(weights, part.stored(), addend, quantization=weights.quantization, part=part)
    linear.source = LinearSource([ProjectionRows(prefix, out_features, slice(None))], in_features, columns)
    return linear


def make_linear(
    weights: Weights,
    parts: Sequence[Stored],
    bias: Tensor | None = None,
    *,
    quantization: str | None = None,
    part: ColumnPart | None = None,
) -> Linear:
    """Concatenate stored matrices into one Linear.

    FP8 matrices stay in FP8 if the device supports it, and packed ones stay in groups; the others get `quantization`.
    part: if `parts` are not all input columns.
    """

    def make() -> Linear:
        weight = fp8_weight(weights, parts) or grouped_weight(weights, parts)
        if weight is None and part is not None:
            weight = part.rounded(weights, quantization)
        if weight is not None:
            return Linear(weight, bias)
        return Linear(join(weights, parts), bias, quantization=quantization, is_owned=True)

    return placed(weights, make, bias)


def placed(weights: Weights, make: Callable[[], Linear], bias: Tensor | None, expert: int | None = None) -> Linear:
    """Return the Linear that `make` returns, with its weight where layers' weights are kept; the bias stays.

    expert: number of the expert that it belongs to.
    """
    if weights.placement is None:
        return make()
    form = weights.placement.place(lambda: make().weight_form, expert, weights.take_peeked())
    weights.take_peeked()  # what `make` has read
    return Linear(weight_of(form, weights.dtype), bias, packed=False)


def _can_pack(weight: Tensor) -> bool:
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    return weight.dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
