"""Slots that the rows of a step use."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowSlots:
    """Slots that the rows of a step use."""

    elsewhere: Tensor  # [num_rows, max_loras, 1] bool: slots that a row does not use
    slots: Tensor  # [num_rows] int64: slot of each row; max_loras: none
    rescales: bool  # whether any of the adapters has gains

    @classmethod
    def of(cls, slots: Tensor, num_slots: int, *, rescales: bool) -> "RowSlots":
        """Return the slots of rows, given that of each."""
        elsewhere = slots.unsqueeze(1) != torch.arange(num_slots, device=slots.device)
        return cls(elsewhere.unsqueeze(2), slots, rescales)
