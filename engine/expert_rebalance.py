"""A better placement of the experts on its way: worked out and read beside the steps, layer after layer."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.expert_balance import balanced
from engine.expert_layer import ExpertLayer
from engine.expert_moves import with_few_moves
from engine.expert_placement import ExpertPlacement
from engine.layers.experts import Expert

logger = logging.getLogger(__name__)

Slots = list[list[int]]  # experts of one layer, by rank and slot


@dataclass(frozen=True, slots=True)
class PreparedLayer:
    """A layer's new experts, of which nobody makes use yet."""

    slots: Slots
    experts: list[Expert]  # in our slots


class Rebalance:
    """Owns a thread that prepares every layer; all ranks prepare the same placement, since they know the same loads."""

    def __init__(
        self,
        layers: Sequence[ExpertLayer],
        slots: Sequence[Slots],
        loads: NDArray[np.int64],
        rank: int,
        num_redundant: int,
    ) -> None:
        """slots: where experts stand now, by layer; loads: [num_layers, num_experts] tokens."""
        self._layers = layers
        self._slots = slots
        self._loads = loads
        self._rank = rank
        self._num_redundant = num_redundant
        self._prepared: list[PreparedLayer] = []
        self._is_cancelled = False
        threading.Thread(target=self._prepare, name="experts", daemon=True).start()

    @property
    def num_ready(self) -> int:
        """Layers that are prepared here, from the first on."""
        return len(self._prepared)

    def take(self, layer: int) -> PreparedLayer:
        """A layer that is prepared."""
        return self._prepared[layer]

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self._is_cancelled = True

    def _prepare(self) -> None:
        started_s = time.monotonic()
        num_read = 0
        try:
            for layer, slots, loads in zip(self._layers, self._slots, self._loads, strict=True):
                if self._is_cancelled:
                    return
                better = better_slots(slots, loads, self._num_redundant)
                wanted = better[self._rank]
                num_read += len(set(wanted) - set(layer.held))
                self._prepared.append(PreparedLayer(better, layer.read(wanted)))
        except Exception:  # the present placement serves on
            logger.exception("the experts could not be placed anew")
        else:
            logger.info("%d experts read in %.1f s for a better balance", num_read, time.monotonic() - started_s)


def imbalance(slots: Slots, loads: NDArray[np.int64]) -> float:
    """Tokens of the busiest rank over those of the mean rank, if an expert's replicas share evenly; 1 is best."""
    num_replicas = Counter(expert for held in slots for expert in held)
    by_rank = [sum(float(loads[expert]) / num_replicas[expert] for expert in held) for held in slots]
    total = sum(by_rank)
    return max(by_rank) * len(slots) / total if total else 1.0


def better_slots(slots: Slots, loads: NDArray[np.int64], num_redundant: int) -> Slots:
    """Where a layer's experts should stand, given where they do: experts move to another rank only if that helps."""
    best = balanced(loads, len(slots), num_redundant)
    if all(len(held) == best.slots_per_rank for held in slots):
        best = with_few_moves(ExpertPlacement(best.num_experts, tuple(map(tuple, slots))), best)
    return [list(held) for held in best.slots]
