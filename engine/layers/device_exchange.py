"""Tokens to experts of the same GPU, without the host."""

from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.experts.permutation import ExpertRows, weighted_sum


class DeviceExchange:
    """All experts stand here, one product for all of them: only the device need know how many rows each one gets."""

    def __init__(self, num_experts: int) -> None:
        self._num_experts = num_experts

    def dispatch(self, x: Tensor, chosen: Tensor) -> "DeviceDispatch":
        """See ExpertExchange."""
        slots = chosen.flatten()
        order = slots.argsort(stable=True)
        places = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        # Of which there is a count on a GPU too, unlike bincount, without waiting for the greatest.
        sizes = slots.new_zeros(self._num_experts).scatter_add_(0, slots, torch.ones_like(slots))
        return DeviceDispatch(ExpertRows(x[order // chosen.shape[1]], sizes, places))


@dataclass(frozen=True, slots=True)
class DeviceDispatch:
    """See Dispatch."""

    rows: ExpertRows

    def arrive(self) -> ExpertRows:
        """At once."""
        return self.rows

    def combine(self, outputs: Tensor, weights: Tensor) -> Tensor:
        """See Dispatch."""
        return weighted_sum(outputs, self.rows.places, weights)
