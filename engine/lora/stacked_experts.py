"""Adapters of routed experts on GPUs: the matrices of all slots for all experts, and rows use their own slot's part.

They take memory only once an adapter changes experts: for `max_loras` adapters in all experts of the rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.layers.experts import AdaptedRows, ExpertProduct
from baton.engine.layers.moe import MoE
from baton.engine.lora.adaptable_layer import AdaptableExperts, AdaptableLayer
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.low_rank import LowRank, even
from baton.engine.lora.row_slots import RowSlots

ALIGNED_RANKS = 8  # grouped products on GPUs need rows of a multiple of 16 bytes
NUM_RESCALED = 4096  # rows, for no room is kept for more values in fp32


class StackedExperts:
    """Adapters of the experts of one layer."""

    def __init__(self, rows: Callable[[], RowSlots | None], experts: AdaptableExperts, num_slots: int) -> None:
        """rows: returns the slots of the step's rows; None: no adapter of the step changes experts."""
        self._rows = rows
        self._experts = experts
        self._num_slots = num_slots
        self.addends: StackedExpertAddends | None = None  # None: no adapter has changed experts so far

    def allocated(self, config: LoraConfig, dtype: torch.dtype) -> "StackedExpertAddends":
        """Return the slots, new ones if there are none. Grouped products need bfloat16, whatever the type."""
        if self.addends is not None:
            return self.addends
        dtype = torch.bfloat16 if self._experts.moe.experts.is_grouped else dtype
        gate_up, down = (ExpertSlots.of(each, config, dtype) for each in (self._experts.gate_up, self._experts.down))
        return StackedExpertAddends(gate_up, down)

    def fill(self, slot: int, matrices: Sequence[LowRank | None]) -> None:
        """Replace the matrices of a slot. matrices: those of all of the model's layers."""
        if self.addends is None:
            return
        found = [matrices[place] for place in self._experts.places]
        self.addends.gate_up.fill(slot, found[::2])
        self.addends.down.fill(slot, found[1::2])

    def dispatch(self, moe: MoE, x: Tensor, chosen: Tensor, weights: Tensor) -> Callable[[], Tensor] | None:
        """Start to send tokens to their experts; see MixtureAdapters."""
        rows, addends = self._rows(), self.addends
        if rows is None or addends is None:
            return None
        dispatch = moe.exchange.dispatch(x, chosen)

        def compute() -> Tensor:
            arrived = dispatch.receive()
            of_step = replace(addends, rescales=rows.rescales)
            adapted = AdaptedRows(arrived.of_tokens(rows.slots, self._num_slots), of_step)
            return dispatch.combine(moe.experts(arrived.rows, arrived.sizes, adapted), weights)

        return compute


@dataclass(frozen=True, slots=True)
class ExpertSlots:
    """Matrices of all slots for one product of all experts, zero where a slot's adapter is smaller."""

    a: Tensor  # [num_experts, max_loras * width, in_features]
    b: Tensor  # [num_experts, out_features, max_loras * width]
    gains: Tensor  # [num_experts, max_loras + 1, out_features] fp32; see SlotMatrices
    biases: Tensor | None  # [num_experts, out_features], in the base outputs
    width: int  # of a slot

    @classmethod
    def of(cls, layers: Sequence[AdaptableLayer], config: LoraConfig, dtype: torch.dtype) -> "ExpertSlots":
        """Allocate empty slots for a product of each expert."""
        source, device = layers[0].source, layers[0].device
        width = even(config.max_rank) * len(source.parts)
        width += -width % ALIGNED_RANKS
        in_features = len(range(source.in_features)[source.columns])
        out_features = sum(part.num_rows for part in source.parts)
        ranks, biases = config.max_loras * width, [each.bias for each in layers if each.bias is not None]
        return cls(
            torch.zeros(len(layers), ranks, in_features, dtype=dtype, device=device),
            torch.zeros(len(layers), out_features, ranks, dtype=dtype, device=device),
            torch.zeros(len(layers), config.max_loras + 1, out_features, device=device),
            torch.stack(biases) if biases else None,
            width,
        )

    def fill(self, slot: int, matrices: Sequence[LowRank | None]) -> None:
        """Replace the matrices of a slot, those of each expert."""
        ranks = slice(slot * self.width, (slot + 1) * self.width)
        a, b, gains = self.a[:, ranks].zero_(), self.b[:, :, ranks].zero_(), self.gains[:, slot].zero_()
        for expert, each in enumerate(matrices):
            if each is not None:
                a[expert, : len(each.a)].copy_(each.a)
                for output in each.outputs:
                    b[expert, output.columns, output.ranks].copy_(output.b)
                    if output.gain is not None:
                        gains[expert, output.columns].copy_(output.gain)

    def add(self, x: Tensor, output: Tensor, sizes: Sequence[int] | Tensor, slots: Tensor) -> None:
        """Change output in place; see ExpertAddends. slots: [num_rows] of the rows."""
        inner = _grouped(x.to(self.a.dtype), self.a, sizes)
        own = slots.unsqueeze(1) == torch.arange(inner.shape[1] // self.width, device=slots.device)
        inner.view(len(x), -1, self.width).masked_fill_(~own.unsqueeze(2), 0)
        output.add_(_grouped(inner, self.b, sizes))

    def rescale(self, output: Tensor, sizes: Sequence[int] | Tensor, slots: Tensor) -> None:
        """Add multiples of the base output to it, in place, some rows at a time. slots: [num_rows] of the rows."""
        if isinstance(sizes, Tensor):
            experts = torch.searchsorted(
                sizes, torch.arange(len(output), dtype=sizes.dtype, device=sizes.device), right=True
            )
        else:
            experts = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes)).to(output.device)
        parts = zip(*(torch.split(each, NUM_RESCALED) for each in (output, experts, slots)), strict=True)
        for part, its_experts, its_slots in parts:
            base = part if self.biases is None else part - self.biases[its_experts]
            part.add_(base * self.gains[its_experts, its_slots])


@dataclass(frozen=True, slots=True)
class StackedExpertAddends:
    """Products of low rank of the adapters in slots, for the rows of one layer's experts."""

    gate_up: ExpertSlots
    down: ExpertSlots
    rescales: bool = False  # whether an adapter of the step has gains

    def add(
        self, product: ExpertProduct, x: Tensor, output: Tensor, sizes: Sequence[int] | Tensor, adapters: Tensor
    ) -> None:
        """Change output in place; see ExpertAddends. adapters: slots."""
        slots = self.gate_up if product is ExpertProduct.GATE_UP else self.down
        if self.rescales:
            slots.rescale(output, sizes, adapters)
        slots.add(x, output, sizes, adapters)


def _grouped(x: Tensor, weights: Tensor, sizes: Sequence[int] | Tensor) -> Tensor:
    """Return the products of each expert's rows with its weights [num_experts, out_features, in_features]."""
    if isinstance(sizes, Tensor):
        return torch._grouped_mm(x, weights.transpose(1, 2), offs=sizes)
    parts = zip(x.split_with_sizes(list(sizes)), weights, strict=True)
    return torch.cat([F.linear(part, weight) for part, weight in parts])
