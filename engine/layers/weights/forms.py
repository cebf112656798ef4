"""Forms of weights as plain data, and weights over the tensors of a form: nothing is computed or copied for either."""

from dataclasses import fields

import torch
from torch import Tensor

from baton.engine.checkpoint.packed.grouped_matrix import GroupedMatrix
from baton.engine.checkpoint.placement import WeightForm
from baton.engine.errors import UnsupportedModel
from baton.engine.layers.weights.fp8_weight import BlockScaledWeight, RowScaledWeight, StoredWeight
from baton.engine.layers.weights.grouped_weight import GroupedWeight, JoinedWeight, PlainWeight
from baton.engine.layers.weights.int8_weight import Int8PanelWeight, Int8Weight
from baton.engine.layers.weights.panel_weight import PanelWeight

Weight = Tensor | StoredWeight | PanelWeight | Int8Weight


def form_of(weight: Weight) -> WeightForm:
    """Return the form of a weight. Raises UnsupportedModel for one whose layout only a library knows."""
    if isinstance(weight, Tensor):
        return WeightForm(kind="plain", tensors={"weight": weight})
    if isinstance(weight, Int8PanelWeight):
        tensors = {"panels": weight.panels, "scales": weight.scales, "offsets": weight.offsets}
        return WeightForm(kind="int8", tensors=tensors, numbers={"out_features": weight.out_features})
    if isinstance(weight, PanelWeight):
        numbers = {"out_features": weight.out_features, "in_features": weight.in_features}
        return WeightForm(kind="panels", tensors={"panels": weight.panels}, numbers=numbers)
    if isinstance(weight, GroupedWeight):
        return _form_of_groups(weight)
    if isinstance(weight, PlainWeight):
        panels = weight.panels
        return form_of(panels) if panels is not None else WeightForm(kind="padded", tensors={"weight": weight.values})
    if isinstance(weight, JoinedWeight):
        return WeightForm(kind="joined", tensors={}, parts=tuple(form_of(part) for part in weight.parts))
    if isinstance(weight, RowScaledWeight):
        return WeightForm(kind="fp8_rows", tensors={"values": weight.values, "scales": weight.scales})
    if isinstance(weight, BlockScaledWeight):
        numbers = {"has_whole_blocks": int(weight.has_whole_blocks), "out_features": weight.out_features}
        return WeightForm(
            kind="fp8_blocks", tensors={"values": weight.values, "scales": weight.scales}, numbers=numbers
        )
    raise unknown_layout()


def unknown_layout() -> UnsupportedModel:
    """Return the error for weights in a layout that only oneDNN knows."""
    return UnsupportedModel(
        "weights_offload: this model's weights would be in oneDNN's own layout, which cannot be kept in a file; set "
        "dtype bfloat16, on a machine with AVX2 and Baton's compiled modules (`baton doctor` reports both)"
    )


def weight_of(form: WeightForm, dtype: torch.dtype) -> Tensor | StoredWeight:
    """Return the weight of a form, over the form's tensors. dtype: that of activations and results."""
    tensors, numbers = form.tensors, form.numbers
    if form.kind == "plain":
        return tensors["weight"]
    if form.kind == "padded":
        return PlainWeight(tensors["weight"])
    if form.kind == "panels":
        return PanelWeight(tensors["panels"], numbers["out_features"], numbers["in_features"])
    if form.kind == "int8":
        return Int8PanelWeight(tensors["panels"], tensors["scales"], tensors["offsets"], numbers["out_features"])
    if form.kind == "groups":
        matrix = GroupedMatrix(bits=numbers["bits"], **{n: t for n, t in tensors.items() if n != "order"})
        return GroupedWeight(matrix, dtype, tensors.get("order"))
    if form.kind == "fp8_rows":
        return RowScaledWeight(tensors["values"], tensors["scales"])
    if form.kind == "fp8_blocks":
        is_whole = bool(numbers["has_whole_blocks"])
        return BlockScaledWeight(tensors["values"], tensors["scales"], is_whole, numbers["out_features"])
    assert form.kind == "joined", form.kind
    return JoinedWeight([_part(part, dtype) for part in form.parts])


def _part(form: WeightForm, dtype: torch.dtype) -> StoredWeight:
    weight = weight_of(form, dtype)
    assert not isinstance(weight, Tensor), "parts of a joined weight have products of their own"
    return weight


def _form_of_groups(weight: GroupedWeight) -> WeightForm:
    matrix = weight.matrix
    if matrix.groups is not None:  # its contents decide about the product, before they are in memory
        raise UnsupportedModel(
            "weights_offload: a matrix whose columns are in groups in any order has no native product here; it needs "
            "groups of one size, and Baton's compiled modules"
        )
    named = {field.name: getattr(matrix, field.name) for field in fields(matrix)}
    tensors = {name: value for name, value in named.items() if isinstance(value, Tensor)}
    if weight.native is not None and weight.native.order is not None:
        tensors["order"] = weight.native.order
    return WeightForm(kind="groups", tensors=tensors, numbers={"bits": matrix.bits})
