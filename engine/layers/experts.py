"""The experts of one layer that stand on this rank, and how they are computed."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.layers.grouped_product import GroupedProduct, grouped_product
from baton.engine.layers.linear import Linear, gated_weights
from baton.engine.layers.panel_weight import GatedWeights
from baton.engine.ops.factory import ops_for

# A product's rows come out the same, bit for bit, for every number of rows that is a multiple of this: who else is in
# the batch, and which rank computes an expert, cannot be seen in a token's result. (oneDNN and MKL: multiples of 4; our
# own products take any number.)
ROW_TILE = 8

GROUPED_CAPABILITIES = (9, 10)  # of GPUs on which torch has kernels for products of all experts


@dataclass(frozen=True, slots=True)
class Expert:
    """The weights of one expert."""

    gate_up: Linear
    down: Linear


class Products(Protocol):
    """What a layer's experts make of rows."""

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor) -> Tensor:
        """See Experts."""
        ...


@dataclass(frozen=True, slots=True)
class SeparateProducts:
    """Two products for each expert that has rows."""

    slots: Sequence[Expert]

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor) -> Tensor:
        """See Experts."""
        assert not isinstance(sizes, Tensor), "the host must know which expert gets which rows"
        busy = [(expert, size) for expert, size in zip(self.slots, sizes, strict=True) if size]
        splits = [size for _, size in busy]
        inputs = rows.split_with_sizes(splits)
        gate_up = torch.cat([expert.gate_up(part) for (expert, _), part in zip(busy, inputs, strict=True)])
        inner = ops_for(rows.device).silu_and_mul(gate_up).split_with_sizes(splits)
        return torch.cat([expert.down(part) for (expert, _), part in zip(busy, inner, strict=True)])


@dataclass(frozen=True, slots=True)
class GatedExperts:
    """One call of compiled code, on a CPU."""

    weights: GatedWeights

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor) -> Tensor:
        """See Experts."""
        assert not isinstance(sizes, Tensor), "the host must know which expert gets which rows"
        return self.weights(rows, sizes)


@dataclass(frozen=True, slots=True)
class GroupedWeights:
    """All slots' weights one after the other, for products of all experts at once."""

    gate_up: GroupedProduct  # hidden to 2 * inner
    down: GroupedProduct  # inner to hidden

    @classmethod
    def of(cls, slots: Sequence[Expert]) -> "GroupedWeights":
        """A copy of their weights."""
        return cls(grouped_product([each.gate_up for each in slots]), grouped_product([each.down for each in slots]))

    def split(self) -> list[Expert]:
        """The experts again, as views."""
        return [Expert(*pair) for pair in zip(self.gate_up.split(), self.down.split(), strict=True)]

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor) -> Tensor:
        """See Experts."""
        ends = torch.as_tensor(sizes, device=rows.device).cumsum(0).to(torch.int32)
        return self.down(ops_for(rows.device).silu_and_mul(self.gate_up(rows, ends)), ends)


@dataclass(frozen=True, slots=True)
class PreparedExperts:
    """The experts of a rank's slots, laid out as they are computed with."""

    slots: tuple[Expert, ...]
    products: Products  # with the same weights


class Experts:
    """Weights by slot; a slot holds one expert of the layer."""

    def __init__(self, slots: Sequence[Expert], *, is_grouped: bool | None = None) -> None:
        """is_grouped: whether all experts are one product; None: on a GPU, where each one's own would idle most of it.

        On a CPU one product for all took 1.02 to 1.5 times as long as one for each, laid out for oneDNN.
        """
        self._is_grouped = is_grouped
        self._standing = PreparedExperts((), SeparateProducts(()))
        self.take(self.prepare(slots))

    @property
    def slots(self) -> tuple[Expert, ...]:
        """The experts, by slot."""
        return self._standing.slots

    def prepare(self, slots: Sequence[Expert]) -> PreparedExperts:
        """Lays out experts that may be taken; for any thread, since it may copy all of them."""
        standing = self._standing
        if len(slots) == len(standing.slots) and all(map(operator.is_, slots, standing.slots)):
            return standing
        is_grouped = self._is_grouped
        if is_grouped is None:
            is_grouped = bool(slots) and _is_faster_grouped(slots[0].gate_up.weight)
        if is_grouped and slots:
            grouped = GroupedWeights.of(slots)
            return PreparedExperts(tuple(grouped.split()), grouped)
        gated = gated_weights([(each.gate_up, each.down) for each in slots])
        return PreparedExperts(tuple(slots), SeparateProducts(slots) if gated is None else GatedExperts(gated))

    def take(self, prepared: PreparedExperts) -> None:
        """These stand in the slots from now on."""
        self._standing = prepared

    @property
    def row_tile(self) -> int:
        """Numbers of rows that are multiples of this give the same bits."""
        return 1 if isinstance(self._standing.products, GatedExperts) else ROW_TILE

    @property
    def is_grouped(self) -> bool:
        """Whether all experts are one product."""
        return isinstance(self._standing.products, GroupedWeights)

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor) -> Tensor:
        """rows: [sum(sizes), hidden], the first slot's `sizes[0]` rows first; sizes are multiples of `row_tile`, or,
        where all experts are one product, any numbers, perhaps on the device.

        Returns the same shape, each row as its slot's expert has it.
        """
        return self._standing.products(rows, sizes) if rows.shape[0] else rows


def _is_faster_grouped(weight: Tensor) -> bool:
    """Elsewhere torch makes one product of each, and the host waits for every size."""
    if not weight.is_cuda or weight.dtype not in (torch.bfloat16, torch.float8_e4m3fn):
        return False
    return torch.cuda.get_device_capability(weight.device)[0] in GROUPED_CAPABILITIES
