"""A better placement of the experts on its way: worked out and read beside the steps, layer after layer."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baton.engine.experts.balance import balanced, imbalance
from baton.engine.experts.layer import ExpertLayer
from baton.engine.experts.migration import with_few_moves
from baton.engine.layers.experts import Expert, PreparedExperts

logger = logging.getLogger(__name__)

READ_DEADLINE_S = 120.0  # for one expert; a file system that takes longer hangs, and the other ranks wait no more
POLL_S = 1.0
FAILED = -1  # instead of a number of layers
WORTH_MOVING = 1.02  # times the best imbalance: below that most experts would be read again for next to nothing

Slots = list[list[int]]  # experts of one layer, by rank and slot
Loads = NDArray[np.int64]  # tokens by expert, of one layer
Place = Callable[[Slots, Loads], Slots]  # where experts should stand, given where they do; the same on all ranks


@dataclass(frozen=True, slots=True)
class PreparedLayer:
    """A layer's new experts, of which nobody makes use yet."""

    slots: Slots
    experts: PreparedExperts  # in our slots


class Rebalance:
    """Owns a thread that prepares every layer; all ranks prepare the same placement, since they know the same loads.

    At most one layer is prepared, or being prepared, that is not taken over: so much memory is needed beside the
    experts that stand. One thread of a rank reads at a time: one whose read hangs has the lock until that ends.
    """

    def __init__(
        self,
        layers: Sequence[ExpertLayer],
        slots: Sequence[Slots],
        loads: NDArray[np.int64],
        rank: int,
        place: Place,
        reading: threading.Lock,
    ) -> None:
        """slots: where experts stand now, by layer; loads: [num_layers, num_experts] tokens; reading: the rank's."""
        self._work = list(zip(layers, slots, loads, strict=True))
        self._rank = rank
        self._place = place
        self._changed = threading.Condition()
        self._waiting: PreparedLayer | None = None  # to be taken over
        self._num_ready = 0
        self._is_cancelled = False
        self._reading = reading
        self._read_since_s: float | None = time.monotonic()  # None: it reads nothing
        threading.Thread(target=self._run, name="experts", daemon=True).start()

    @property
    def num_ready(self) -> int:
        """Layers that are prepared here, from the first on; FAILED if the next one cannot be, or not in time."""
        since_s = self._read_since_s
        if since_s is not None and time.monotonic() - since_s > READ_DEADLINE_S:
            logger.warning("reading an expert takes over %g s; the experts stay where they are", READ_DEADLINE_S)
            return FAILED
        return self._num_ready

    @property
    def prepared(self) -> PreparedLayer:
        """The layer that is prepared."""
        assert self._waiting is not None, "no layer is prepared"
        return self._waiting

    def taken(self) -> None:
        """The layer has been taken over, and what stood there before is gone; the next one is begun."""
        with self._changed:
            self._waiting = None
            self._read_since_s = time.monotonic()
            self._changed.notify_all()

    def cancel(self) -> None:
        """Nobody wants it any more."""
        with self._changed:
            self._is_cancelled, self._waiting = True, None
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._reading.acquire(timeout=POLL_S):
            if self._is_cancelled:
                return
        try:
            self._prepare_all()
        finally:
            self._read_since_s = None
            self._reading.release()

    def _prepare_all(self) -> None:
        started_s, num_read = time.monotonic(), 0
        try:
            for layer, slots, loads in self._work:
                better = self._place(slots, loads)
                num_read += len(set(better[self._rank]) - set(layer.held))
                experts = layer.prepare(self._read(layer, better[self._rank]))
                if not self._hand_in(PreparedLayer(better, experts)):
                    return
        except Exception:  # the present placement serves on
            self._num_ready = FAILED
            logger.exception("the experts could not be placed anew")
        else:
            logger.info("%d experts read in %.1f s for a better balance", num_read, time.monotonic() - started_s)

    def _read(self, layer: ExpertLayer, wanted: Sequence[int]) -> list[Expert]:
        """One after the other, and no more once nobody wants them."""
        experts: list[Expert] = []
        for expert in wanted:
            if self._is_cancelled:
                break
            experts += layer.read([expert])
            self._read_since_s = time.monotonic()
        return experts

    def _hand_in(self, prepared: PreparedLayer) -> bool:
        """Returns once the layer is taken over; False if nobody wants it."""
        with self._changed:
            if self._is_cancelled:
                return False
            self._waiting, self._read_since_s = prepared, None
            self._num_ready += 1
            self._changed.wait_for(lambda: self._waiting is None)
            return not self._is_cancelled


def better_slots(slots: Slots, loads: Loads, num_redundant: int, num_groups: int = 1, num_nodes: int = 1) -> Slots:
    """Where a layer's experts should stand, given where they do: they move only if that helps.

    The rest is as in `balanced`.
    """
    best = balanced(loads, len(slots), num_redundant, num_groups, num_nodes)
    has_its_slots = all(len(held) == best.slots_per_rank for held in slots)
    if num_nodes == 1 and has_its_slots and imbalance(slots, loads) < WORTH_MOVING * imbalance(best.slots, loads):
        return [list(held) for held in slots]
    return [list(held) for held in with_few_moves(slots, best, num_nodes).slots]
