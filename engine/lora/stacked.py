"""Adapters on GPUs: the matrices of all slots are one matrix, and rows use their own slot's part of it.

The shapes are those of the slots, whatever the batch has, and nothing waits for the device. A row's products with other
slots' matrices are replaced by zeros, so a step costs as much as an adapter of rank max_loras * max_lora_rank.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.execution.batch import Batch
from baton.engine.execution.device import to_device_async
from baton.engine.lora.adaptable_layer import AdaptableExperts, AdaptableLayer, Inputs
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.low_rank import LowRank, even
from baton.engine.lora.row_slots import RowSlots
from baton.engine.lora.stacked_experts import StackedExperts

NUM_RESCALED = 512  # rows


class StackedAdapters:
    """Adapters of a model on a GPU: those in slots are there, the others in host memory."""

    def __init__(
        self,
        layers: Sequence[AdaptableLayer],
        config: LoraConfig,
        dtype: torch.dtype,
        mixtures: Sequence[AdaptableExperts] = (),
    ) -> None:
        """Allocate the slots, and let the layers add the products of their rows' adapters.

        mixtures: the experts, whose layers follow `layers` in an adapter's matrices.
        """
        self._config, self._dtype = config, dtype
        self.load_s = 0.0
        self._matrices: dict[int, Sequence[LowRank | None]] = {}
        self._slots = [0] * config.max_loras  # number of the adapter in each slot; 0: none
        self._used_at = [0] * config.max_loras  # step that last used the slot
        self._num_steps = 0
        self._rescaling: set[int] = set()  # numbers of the adapters with gains
        self._changing_experts: set[int] = set()
        self.expert_rows: RowSlots | None = None  # of the tokens; None: no adapter of the step changes experts
        self.rows: RowSlots | None = None  # of the tokens; None: no row of the step has an adapter
        self.last_rows: RowSlots | None = None  # of those whose logits are wanted
        self._addends = [StackedAddend(self, layer, SlotMatrices.of(layer, config, dtype)) for layer in layers]
        for layer, addend in zip(layers, self._addends, strict=True):
            layer.layer.addend = addend
        self._mixtures = [StackedExperts(lambda: self.expert_rows, each, config.max_loras) for each in mixtures]
        for each, experts in zip(mixtures, self._mixtures, strict=True):
            each.moe.adapters = experts

    @torch.inference_mode()
    def add(self, number: int, matrices: Sequence[LowRank | None]) -> None:
        """Keep the matrices in host memory; see ModelAdapters. Raises RuntimeError if slots of experts do not fit."""
        if any(each is not None for each in matrices[len(self._addends) :]):
            # All of them or none: those of some layers would take memory that the steps need, and be of no use.
            slots = [experts.allocated(self._config, self._dtype) for experts in self._mixtures]
            for experts, addends in zip(self._mixtures, slots, strict=True):
                experts.addends = addends
            self._changing_experts.add(number)
        self._matrices[number] = matrices
        if any(output.gain is not None for each in matrices if each is not None for output in each.outputs):
            self._rescaling.add(number)

    def remove(self, number: int) -> None:
        """Drop an adapter; its slot is free."""
        self._matrices.pop(number, None)
        self._rescaling.discard(number)
        self._changing_experts.discard(number)
        self._slots = [0 if each == number else each for each in self._slots]

    @torch.inference_mode()
    def plan(self, batch: Batch) -> None:
        """Copy adapters that are in no slot into those used least recently, and note each row's slot."""
        self.rows = self.last_rows = self.expert_rows = None
        wanted = {run.number for run in batch.adapters} - {0}
        if not wanted:
            return
        self._num_steps += 1
        for number in wanted & set(self._slots):
            self._used_at[self._slots.index(number)] = self._num_steps
        for number in wanted - set(self._slots):
            self._load(number)
        slots = [self._slots.index(run.number) if run.number else len(self._slots) for run in batch.adapters]
        of_rows = torch.tensor(slots).repeat_interleave(torch.tensor([run.num_tokens for run in batch.adapters]))
        rows = to_device_async(of_rows, self._addends[0].slots.a.device)
        rescales = not wanted.isdisjoint(self._rescaling)
        self.rows = RowSlots.of(rows, len(self._slots), rescales=rescales)
        self.expert_rows = None if wanted.isdisjoint(self._changing_experts) else self.rows
        self.last_rows = RowSlots.of(rows[batch.logits_indices], len(self._slots), rescales=rescales)

    def _load(self, number: int) -> None:
        started_s = time.perf_counter()
        free = [slot for slot, used_at in enumerate(self._used_at) if used_at < self._num_steps]
        slot = min(free, key=lambda each: (self._slots[each] != 0, self._used_at[each]))
        self._slots[slot] = 0  # until it is filled: the step may run out of memory, and is repeated
        matrices = self._matrices[number]
        for addend, each in zip(self._addends, matrices, strict=False):
            addend.slots.fill(slot, each)
        for experts in self._mixtures:
            experts.fill(slot, matrices)
        self._slots[slot], self._used_at[slot] = number, self._num_steps
        self.load_s = time.perf_counter() - started_s

    def resident(self) -> frozenset[int]:
        """Return the numbers of the adapters in slots."""
        return frozenset(self._slots) - {0}


@dataclass(frozen=True, slots=True)
class SlotMatrices:
    """Matrices of all slots for one layer, zero where a slot's adapter is smaller."""

    a: Tensor  # [max_loras * width, in_features]
    b: Tensor  # [out_features, max_loras * width]
    gains: Tensor  # [max_loras + 1, out_features] fp32; see LowRankOutput. The last row is zero: no slot
    width: int  # width of a slot: max_lora_rank for each of the projections

    @classmethod
    def of(cls, layer: AdaptableLayer, config: LoraConfig, dtype: torch.dtype) -> "SlotMatrices":
        """Allocate empty slots."""
        source = layer.source
        width = even(config.max_rank) * len({part.name for part in source.parts})
        in_features = len(range(source.in_features)[source.columns])
        out_features = sum(part.num_rows for part in source.parts)
        device = layer.device
        return cls(
            torch.zeros(config.max_loras * width, in_features, dtype=dtype, device=device),
            torch.zeros(out_features, config.max_loras * width, dtype=dtype, device=device),
            torch.zeros(config.max_loras + 1, out_features, device=device),
            width,
        )

    def fill(self, slot: int, matrices: LowRank | None) -> None:
        """Replace the matrices of a slot."""
        a = self.a[slot * self.width : (slot + 1) * self.width].zero_()
        b = self.b[:, slot * self.width : (slot + 1) * self.width].zero_()
        self.gains[slot].zero_()
        if matrices is not None:
            a[: len(matrices.a)].copy_(matrices.a)
            for each in matrices.outputs:
                b[each.columns, each.ranks].copy_(each.b)
                if each.gain is not None:
                    self.gains[slot, each.columns].copy_(each.gain)


class StackedAddend:
    """Products of the adapters that are added to the output of one layer."""

    def __init__(self, adapters: StackedAdapters, layer: AdaptableLayer, slots: SlotMatrices) -> None:
        self._adapters = adapters
        self._inputs = layer.inputs
        self._bias = layer.bias
        self.slots = slots

    def __call__(self, x: Tensor, output: Tensor) -> Tensor:
        """Return output [num_rows, out_features] for x [num_rows, in_features] or [num_rows], changed in place."""
        rows = self._adapters.last_rows if self._inputs is Inputs.LAST_STATES else self._adapters.rows
        if rows is None:
            return output
        if rows.rescales:
            self._rescale(output, rows.slots)
        inner = self._inner(x)
        inner.view(len(x), rows.elsewhere.shape[1], self.slots.width).masked_fill_(rows.elsewhere, 0)
        if inner.dtype == output.dtype:
            return output.addmm_(inner, self.slots.b.t())  # without memory for a second output
        return output.add_(F.linear(inner, self.slots.b))

    def _rescale(self, output: Tensor, slots: Tensor) -> None:
        """Add the multiples of the base output; some rows at a time, for no room is kept for as many values in fp32."""
        for part, its_slots in zip(torch.split(output, NUM_RESCALED), torch.split(slots, NUM_RESCALED), strict=True):
            base = part if self._bias is None else part - self._bias
            part.add_(base * F.embedding(its_slots, self.slots.gains))

    def _inner(self, x: Tensor) -> Tensor:
        """Return the products with `a` of all slots, [num_rows, max_loras * width]."""
        if self._inputs is Inputs.TOKEN_IDS:
            return self.slots.a.index_select(1, x).t().contiguous()
        return F.linear(x.to(self.slots.a.dtype), self.slots.a)
