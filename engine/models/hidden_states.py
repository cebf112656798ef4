"""Hidden states that a model's steps leave for a draft head."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Combine = Callable[[Tensor], Tensor]  # [num_tokens, num_states * hidden] to [num_tokens, width]


class HiddenStates:
    """Hidden states of the tokens in a model's blocks, each in the slot of the token's KV in the first KV group.

    They are in no block: a handover, a pull and a store bring KV without them.
    """

    def __init__(self, layers: Sequence[int], combine: Combine | None, rows: Tensor) -> None:
        """layers: those whose inputs are stored side by side; none: the final hidden states, after the last norm.

        combine: reduces them to the width of `rows` [num_slots, width].
        """
        self.layers = layers
        self._combine = combine
        self._rows = rows

    @property
    def device(self) -> torch.device:
        """Device of the states."""
        return self._rows.device

    def store(self, slots: Tensor, states: Sequence[Tensor]) -> None:
        """Store the hidden states of a step's tokens, a tensor [num_tokens, hidden] for each layer."""
        found = states[0] if len(states) == 1 else torch.cat(list(states), dim=1)
        self._rows.index_copy_(0, slots, found if self._combine is None else self._combine(found))

    def at(self, slots: Tensor) -> Tensor:
        """Return the hidden states [num_slots, width] in these slots."""
        return self._rows[slots]
