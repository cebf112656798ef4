"""The experts of one layer on this rank, and the ways to compute them."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.activation import MLPActivation
from baton.engine.layers.activation import activated
from baton.engine.layers.expert_pairs.products import is_served, products_for
from baton.engine.layers.linear import Linear, gated_weights
from baton.engine.layers.weights.grouped_product import GroupedProduct, PlainProduct, grouped_product
from baton.engine.layers.weights.grouped_weight import GroupedWeight
from baton.engine.layers.weights.panel_weight import GatedWeights

# A product's rows are the same, bit for bit, for every number of rows that is a multiple of this. A token's result
# therefore does not depend on the rest of the batch, nor on the rank that computes an expert. MKL needs multiples of 16
# on Intel's processors. The native products take any number. Without them on a CPU with AMX, oneDNN divides large bf16
# products differently for different numbers of rows, whatever their multiple.
ROW_TILE = 16

GROUPED_CAPABILITIES = (9, 10)  # compute capabilities of GPUs with grouped-product kernels in torch

FewTokens = Callable[[Tensor, Tensor, Tensor], Tensor]  # tokens, their experts and weights to weighted sums


@dataclass(frozen=True, slots=True)
class Expert:
    """Weights of one expert."""

    gate_up: Linear  # without a gate, only up
    down: Linear
    activation: MLPActivation = "silu"


class ExpertAddends(Protocol):
    """Adds to the two products of a layer's experts what the adapters of their rows do; see Experts for sizes."""

    def add(
        self, product: "ExpertProduct", x: Tensor, output: Tensor, sizes: Sequence[int] | Tensor, adapters: Tensor
    ) -> None:
        """Change output [num_rows, out_features] of a product in place, for x [num_rows, in_features].

        adapters: [num_rows], see AdaptedRows.
        """
        ...


class ExpertProduct(Enum):
    """One of the two products of an expert."""

    GATE_UP = 0
    DOWN = 1


@dataclass(frozen=True, slots=True)
class AdaptedRows:
    """Adapters of rows."""

    adapters: Tensor  # [num_rows]: the adapter of each row, in the numbers of `addends`
    addends: ExpertAddends


class Products(Protocol):
    """Computes a layer's experts on their rows."""

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor, adapted: AdaptedRows | None = None) -> Tensor:
        """Return the experts' outputs for their rows; see Experts."""
        ...


@dataclass(frozen=True, slots=True)
class SeparateProducts:
    """Two separate products per expert that has rows."""

    slots: Sequence[Expert]

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor, adapted: AdaptedRows | None = None) -> Tensor:
        """Return the experts' outputs for their rows; see Experts."""
        assert not isinstance(sizes, Tensor), "the host must know which expert gets which rows"
        busy = [(expert, size) for expert, size in zip(self.slots, sizes, strict=True) if size]
        splits = [size for _, size in busy]
        inputs = rows.split_with_sizes(splits)
        gate_up = torch.cat([expert.gate_up(part) for (expert, _), part in zip(busy, inputs, strict=True)])
        if adapted is not None:
            adapted.addends.add(ExpertProduct.GATE_UP, rows, gate_up, sizes, adapted.adapters)
        inner = activated(gate_up, self.slots[0].activation)
        parts = inner.split_with_sizes(splits)
        outputs = torch.cat([expert.down(part) for (expert, _), part in zip(busy, parts, strict=True)])
        if adapted is not None:
            adapted.addends.add(ExpertProduct.DOWN, inner, outputs, sizes, adapted.adapters)
        return outputs


@dataclass(frozen=True, slots=True)
class GatedExperts:
    """All experts in one call of the native code, on a CPU; rows with adapters in two."""

    weights: GatedWeights
    separate: SeparateProducts  # over the same weights

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor, adapted: AdaptedRows | None = None) -> Tensor:
        """Return the experts' outputs for their rows; see Experts."""
        assert not isinstance(sizes, Tensor), "the host must know which expert gets which rows"
        return self.weights(rows, sizes) if adapted is None else self.separate(rows, sizes, adapted)


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """Stacked weights of all slots, for grouped products of all experts at once."""

    gate_up: GroupedProduct  # hidden to 2 * inner, or without a gate to inner
    down: GroupedProduct  # inner to hidden
    activation: MLPActivation = "silu"

    @classmethod
    def of(cls, slots: Sequence[Expert]) -> "GroupedWeights":
        """Stack copies of the experts' weights."""
        gate_up, down = [each.gate_up for each in slots], [each.down for each in slots]
        return cls(grouped_product(gate_up), grouped_product(down), slots[0].activation)

    def split(self) -> list[Expert]:
        """Return the experts as views of the stacked weights."""
        pairs = zip(self.gate_up.split(), self.down.split(), strict=True)
        return [Expert(gate_up, down, self.activation) for gate_up, down in pairs]

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor, adapted: AdaptedRows | None = None) -> Tensor:
        """Return the experts' outputs for their rows; see Experts."""
        ends = sizes
        if not isinstance(ends, Tensor):
            ends = torch.tensor(sizes, device=rows.device).cumsum(0).to(torch.int32)
        gate_up = self.gate_up(rows, ends)
        if adapted is not None:
            adapted.addends.add(ExpertProduct.GATE_UP, rows, gate_up, ends, adapted.adapters)
        inner = activated(gate_up, self.activation)
        outputs = self.down(inner, ends)
        if adapted is not None:
            adapted.addends.add(ExpertProduct.DOWN, inner, outputs, ends, adapted.adapters)
        return outputs

    def for_few(self, x: Tensor, chosen: Tensor) -> FewTokens | None:
        """Return the kernels of few tokens; see Experts."""
        gate_up, down = self.gate_up, self.down
        if self.activation != "silu" or not (isinstance(gate_up, PlainProduct) and isinstance(down, PlainProduct)):
            return None
        if gate_up.bias is not None or down.bias is not None or not is_served(x, chosen, gate_up.weight, down.weight):
            return None
        products = products_for(x.device)
        return None if products is None else partial(products, gate_up=gate_up.weight, down=down.weight)


@dataclass(frozen=True, slots=True)
class PreparedExperts:
    """Experts of a rank's slots in the layout used to compute them."""

    slots: tuple[Expert, ...]
    products: Products  # over the same weights


class Experts:
    """Expert weights by slot; a slot holds one expert of the layer."""

    def __init__(self, slots: Sequence[Expert], *, is_grouped: bool | None = None) -> None:
        """Lay out the experts of all slots.

        is_grouped: whether to compute all experts as one grouped product. Default: on GPUs that support it, where
        separate products would leave most of the GPU idle. On a CPU, one product for all took 1.02 to 1.5 times as long
        as one per expert in oneDNN's layout.
        """
        self._is_grouped = is_grouped
        self._current = PreparedExperts((), SeparateProducts(()))
        self.take(self.prepare(slots))

    @property
    def slots(self) -> tuple[Expert, ...]:
        """The experts, by slot."""
        return self._current.slots

    def prepare(self, slots: Sequence[Expert]) -> PreparedExperts:
        """Lay out experts for `take`. Safe on any thread, since it may copy all of them."""
        current = self._current
        if len(slots) == len(current.slots) and all(map(operator.is_, slots, current.slots)):
            return current
        is_grouped = self._is_grouped
        if is_grouped is None:
            is_grouped = bool(slots) and _is_faster_grouped(slots[0].gate_up.weight)
        if is_grouped and slots:
            grouped = GroupedWeights.of(slots)
            return PreparedExperts(tuple(grouped.split()), grouped)
        is_silu = all(each.activation == "silu" for each in slots)
        gated = gated_weights([(each.gate_up, each.down) for each in slots]) if is_silu else None
        separate = SeparateProducts(slots)
        return PreparedExperts(tuple(slots), separate if gated is None else GatedExperts(gated, separate))

    def take(self, prepared: PreparedExperts) -> None:
        """Switch to prepared experts."""
        self._current = prepared

    def wrap_products(self, wrap: Callable[[Products], Products]) -> None:
        """Compute all experts by what `wrap` makes of the present products, with the same results."""
        current = self._current
        self.take(PreparedExperts(current.slots, wrap(current.products)))

    @property
    def row_tile(self) -> int:
        """Rows per slot must be a multiple of this for bit-identical results."""
        is_native = isinstance(self._current.products, GatedExperts) or (
            bool(self.slots)
            and all(_is_grouped_native(each) for slot in self.slots for each in (slot.gate_up, slot.down))
        )
        return 1 if is_native else ROW_TILE

    @property
    def is_grouped(self) -> bool:
        """Whether all experts are computed as one grouped product."""
        return isinstance(self._current.products, GroupedWeights)

    def for_few(self, x: Tensor, chosen: Tensor) -> FewTokens | None:
        """Return a function of x, chosen and weights [num_tokens, num_chosen] that computes each token by itself.

        It returns the weighted sums of the experts' outputs, [num_tokens, hidden]. None if the rows of x [num_tokens,
        hidden] must be sorted by the slots `chosen` [num_tokens, num_chosen], since no kernel serves them unsorted.
        """
        products = self._current.products
        return products.for_few(x, chosen) if isinstance(products, GroupedWeights) else None

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor, adapted: AdaptedRows | None = None) -> Tensor:
        """Apply each slot's expert to its rows; returns the same shape.

        rows: [sum(sizes), hidden], the first slot's `sizes[0]` rows first; sizes: multiples of `row_tile`, or, if the
        experts are grouped, any numbers, or on the device the end of each slot's rows, [num_slots] int32; adapted:
        None if no row has an adapter.
        """
        return self._current.products(rows, sizes, adapted) if rows.shape[0] else rows


def _is_grouped_native(linear: Linear) -> bool:
    return isinstance(linear.form, GroupedWeight) and linear.form.native is not None


def _is_faster_grouped(weight: Tensor) -> bool:
    """Return whether torch has a grouped kernel; otherwise it loops over experts and the host waits for every size."""
    if not weight.is_cuda or weight.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        return False
    return torch.cuda.get_device_capability(weight.device)[0] in GROUPED_CAPABILITIES
