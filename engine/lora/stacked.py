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
from baton.engine.layers.linear import Linear
from baton.engine.layers.linear_source import LinearSource
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.low_rank import LowRank, even


class StackedAdapters:
    """Adapters of a model on a GPU: those in slots are there, the others in host memory."""

    def __init__(
        self, linears: Sequence[Linear], sources: Sequence[LinearSource], config: LoraConfig, dtype: torch.dtype
    ) -> None:
        """Allocate the slots, and let the Linears add the products of their rows' adapters."""
        self.load_s = 0.0
        self._matrices: dict[int, Sequence[LowRank | None]] = {}
        self._slots = [0] * config.max_loras  # number of the adapter in each slot; 0: none
        self._used_at = [0] * config.max_loras  # step that last used the slot
        self._num_steps = 0
        self.elsewhere: Tensor | None = None  # [num_tokens, max_loras, 1] bool: slots that a row does not use
        self._addends = [
            StackedAddend(self, SlotMatrices.of(linear, source, config, dtype))
            for linear, source in zip(linears, sources, strict=True)
        ]
        for linear, addend in zip(linears, self._addends, strict=True):
            linear.addend = addend

    def add(self, number: int, matrices: Sequence[LowRank | None]) -> None:
        """Keep the matrices in host memory; see ModelAdapters."""
        self._matrices[number] = matrices

    def remove(self, number: int) -> None:
        """Drop an adapter; its slot is free."""
        self._matrices.pop(number, None)
        self._slots = [0 if each == number else each for each in self._slots]

    @torch.inference_mode()
    def plan(self, batch: Batch) -> None:
        """Copy adapters that are in no slot into those used least recently, and note each row's slot."""
        self.elsewhere = None
        wanted = set(batch.adapters) - {0}
        if not wanted:
            return
        self._num_steps += 1
        for number in wanted & set(self._slots):
            self._used_at[self._slots.index(number)] = self._num_steps
        for number in wanted - set(self._slots):
            self._load(number)
        slots = torch.tensor([self._slots.index(number) if number else -1 for number in batch.adapters])
        of_rows = slots.repeat_interleave(torch.tensor(batch.query_lens_list))
        elsewhere = of_rows.unsqueeze(1) != torch.arange(len(self._slots))
        self.elsewhere = to_device_async(elsewhere.unsqueeze(2), self._addends[0].slots.a.device)

    def _load(self, number: int) -> None:
        started_s = time.perf_counter()
        free = [slot for slot, used_at in enumerate(self._used_at) if used_at < self._num_steps]
        slot = min(free, key=lambda each: (self._slots[each] != 0, self._used_at[each]))
        self._slots[slot], self._used_at[slot] = number, self._num_steps
        for addend, matrices in zip(self._addends, self._matrices[number], strict=True):
            addend.slots.fill(slot, matrices)
        self.load_s = time.perf_counter() - started_s

    def resident(self) -> frozenset[int]:
        """Return the numbers of the adapters in slots."""
        return frozenset(self._slots) - {0}


@dataclass(frozen=True, slots=True)
class SlotMatrices:
    """Matrices of all slots for one Linear, zero where a slot's adapter is smaller."""

    a: Tensor  # [max_loras * width, in_features]
    b: Tensor  # [out_features, max_loras * width]
    width: int  # width of a slot: max_lora_rank for each of the projections

    @classmethod
    def of(cls, linear: Linear, source: LinearSource, config: LoraConfig, dtype: torch.dtype) -> "SlotMatrices":
        """Allocate empty slots."""
        width = even(config.max_rank) * len({part.name for part in source.parts})
        in_features = len(range(source.in_features)[source.columns])
        out_features = sum(part.num_rows for part in source.parts)
        device = linear.weight.device
        return cls(
            torch.zeros(config.max_loras * width, in_features, dtype=dtype, device=device),
            torch.zeros(out_features, config.max_loras * width, dtype=dtype, device=device),
            width,
        )

    def fill(self, slot: int, matrices: LowRank | None) -> None:
        """Replace the matrices of a slot."""
        a = self.a[slot * self.width : (slot + 1) * self.width].zero_()
        b = self.b[:, slot * self.width : (slot + 1) * self.width].zero_()
        if matrices is not None:
            a[: len(matrices.a)].copy_(matrices.a)
            for each in matrices.outputs:
                b[each.columns, each.ranks].copy_(each.b)


class StackedAddend:
    """Products of the adapters that are added to the output of one Linear."""

    def __init__(self, adapters: StackedAdapters, slots: SlotMatrices) -> None:
        self._adapters = adapters
        self.slots = slots

    def __call__(self, x: Tensor, output: Tensor) -> Tensor:
        """Return output [num_tokens, out_features] for x [num_tokens, in_features], changed in place."""
        elsewhere = self._adapters.elsewhere
        if elsewhere is None:
            return output
        inner = F.linear(x.to(self.slots.a.dtype), self.slots.a)
        inner.view(len(x), elsewhere.shape[1], self.slots.width).masked_fill_(elsewhere, 0)
        if inner.dtype == output.dtype:
            return output.addmm_(inner, self.slots.b.t())  # without memory for a second output
        return output.add_(F.linear(inner, self.slots.b))
