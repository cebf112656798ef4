"""Rebalancing of experts: a better placement, computed and loaded in the background, layer by layer."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from baton.engine.experts.balance import balanced, imbalance, is_hierarchical
from baton.engine.experts.layer import ExpertLayer
from baton.engine.experts.migration import with_few_moves
from baton.engine.layers.experts import Expert, PreparedExperts

logger = logging.getLogger(__name__)

READ_DEADLINE_S = 120.0  # per expert; a slower file system is taken to hang, and the other ranks stop waiting
POLL_S = 1.0
FAILED = -1  # in place of the number of prepared layers
WORTH_MOVING = 1.02  # times the best imbalance: below this, reading most experts again gains next to nothing

Slots = list[list[int]]  # experts of one layer, by rank and slot
Loads = NDArray[np.int64]  # tokens of one layer, by expert
Place = Callable[[Slots, Loads], Slots]  # placement policy: new slots from current slots; the same on all ranks


@dataclass(frozen=True, slots=True)
class PreparedLayer:
    """A layer's new placement and experts, not in use yet."""

    slots: Slots
    experts: PreparedExperts  # those of this rank's slots


class Rebalance:
    """Background thread that prepares one layer after the other; all ranks compute the same placement from the loads.

    At most one layer is prepared, or being prepared, before it is applied: that bounds the memory needed in addition to
    the current experts. Only one thread of a rank reads at a time: if its read hangs, it keeps the lock until it ends.
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
        """Start the thread.

        slots: current placement by layer; loads: [num_layers, num_experts] tokens; reading: the rank's read lock.
        """
        self._work = list(zip(layers, slots, loads, strict=True))
        self._rank = rank
        self._place = place
        self._changed = threading.Condition()
        self._waiting: PreparedLayer | None = None  # prepared, not applied yet
        self._num_ready = 0
        self._is_cancelled = False
        self._reading = reading
        self._read_since_s: float | None = time.monotonic()  # start of the current read; None: not reading
        threading.Thread(target=self._run, name="experts", daemon=True).start()

    @property
    def num_ready(self) -> int:
        """Number of layers prepared so far; FAILED if the next one failed or took too long."""
        since_s = self._read_since_s
        if since_s is not None and time.monotonic() - since_s > READ_DEADLINE_S:
            logger.warning("reading an expert takes over %g s; keeping the current placement", READ_DEADLINE_S)
            return FAILED
        return self._num_ready

    @property
    def prepared(self) -> PreparedLayer:
        """The prepared layer that is next to be applied."""
        assert self._waiting is not None, "no layer is prepared"
        return self._waiting

    def mark_applied(self) -> None:
        """Note that the prepared layer was applied and the old experts freed; the thread starts on the next one."""
        with self._changed:
            self._waiting = None
            self._read_since_s = time.monotonic()
            self._changed.notify_all()

    def cancel(self) -> None:
        """Stop preparing layers."""
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
                if not self._publish(PreparedLayer(better, experts)):
                    return
        except Exception:  # the current placement stays in use
            self._num_ready = FAILED
            logger.exception("rebalancing the experts failed; keeping the current placement")
        else:
            logger.info("rebalanced the experts: read %d in %.1f s", num_read, time.monotonic() - started_s)

    def _read(self, layer: ExpertLayer, wanted: Sequence[int]) -> list[Expert]:
        """Read experts one by one until done or cancelled."""
        experts: list[Expert] = []
        for expert in wanted:
            if self._is_cancelled:
                break
            experts += layer.read([expert])
            self._read_since_s = time.monotonic()
        return experts

    def _publish(self, prepared: PreparedLayer) -> bool:
        """Publish a prepared layer and wait until it is applied; False if the rebalance was cancelled."""
        with self._changed:
            if self._is_cancelled:
                return False
            self._waiting, self._read_since_s = prepared, None
            self._num_ready += 1
            self._changed.wait_for(lambda: self._waiting is None)
            return not self._is_cancelled


def better_slots(slots: Slots, loads: Loads, num_redundant: int, num_groups: int = 1, num_nodes: int = 1) -> Slots:
    """Return a layer's balanced placement that moves few experts, or the current one if moving gains too little.

    A placement that spreads a group of experts over several nodes is replaced whatever the gain, if the balanced one
    does not. The other parameters are those of `balanced`.
    """
    best = balanced(loads, len(slots), num_redundant, num_groups, num_nodes)
    has_its_slots = all(len(held) == best.slots_per_rank for held in slots)
    keeps_groups = is_hierarchical(len(loads), len(slots), best.slots_per_rank, num_groups, num_nodes)
    is_spread = keeps_groups and _spreads_groups(slots, len(loads) // num_groups, num_nodes)
    is_good = imbalance(slots, loads) < WORTH_MOVING * imbalance(best.slots, loads)
    if has_its_slots and is_good and not is_spread:
        return [list(held) for held in slots]
    return [list(held) for held in with_few_moves(slots, best, num_nodes).slots]


def _spreads_groups(slots: Slots, group_size: int, num_nodes: int) -> bool:
    """Return whether experts of one group are on several nodes, which have equally many consecutive ranks."""
    ranks_per_node = len(slots) // num_nodes
    places = {(expert // group_size, rank // ranks_per_node) for rank, held in enumerate(slots) for expert in held}
    return len(places) > len({group for group, _ in places})
