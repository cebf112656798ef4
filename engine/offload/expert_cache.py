"""Cache of experts in memory, by popularity."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from baton.engine.offload.layout import Unit, total_bytes
from baton.engine.offload.unit_reads import UnitReader, UnitReads

HALF_LIFE = 64  # steps after which a use counts half
LARGEST_USE = 2.0**512  # weight of a use at which all scores are made smaller


@dataclass(frozen=True, slots=True)
class ExpertReads:
    """Reads of experts in flight."""

    experts: tuple[int, ...]
    reads: UnitReads


class ExpertCache:
    """Experts of all layers in a bounded memory: the least frequently used one makes room, and uses age.

    Instead of making all scores smaller at each step, a use weighs more the later it is (forward decay), which gives
    the same order.
    """

    def __init__(self, reader: UnitReader, units: Mapping[int, Mapping[int, Unit]], num_bytes: int) -> None:
        """units: by layer and expert; num_bytes: at least the experts of a token."""
        self._reader = reader
        self._units = units
        self._growth = 2 ** (1 / (HALF_LIFE * max(1, len(units))))  # of a use's weight, from layer to layer
        self._use = 1.0  # weight of a use
        self._scores: dict[Unit, float] = {}
        self._resident: set[Unit] = set()
        self._order: list[tuple[float, int, Unit]] = []  # heap of the resident ones with scores of now or earlier
        self._num_bytes = self._left = num_bytes

    def waves(self, layer: int, experts: Sequence[int]) -> Iterator[tuple[int, ...]]:
        """Yield a layer's experts in memory, some at a time; each stays there until the next ones are asked for.

        First those that are there already, while the others are read; all at once, if they fit. Raises EngineError.
        """
        self._note(layer, experts)
        units = self._units[layer]
        hits = tuple(expert for expert in experts if units[expert] in self._resident)
        missing = [expert for expert in experts if units[expert] not in self._resident]
        self._reader.counters.num_expert_hits += len(hits)
        self._reader.counters.num_expert_misses += len(missing)
        if not missing:
            yield hits
            return
        reading = self._read(layer, missing, hits)
        if hits:
            yield hits
        while missing:
            if not reading.experts:  # no room next to those of the last wave
                reading = self._read(layer, missing, ())
            reading.reads.wait()
            wave, missing = reading.experts, missing[len(reading.experts) :]
            reading = self._read(layer, missing, wave)
            yield wave

    def _note(self, layer: int, experts: Sequence[int]) -> None:
        self._use *= self._growth
        for expert in experts:
            unit = self._units[layer][expert]
            self._scores[unit] = self._scores.get(unit, 0.0) + self._use
        if self._use > LARGEST_USE:
            self._scores = {unit: score / self._use for unit, score in self._scores.items()}
            self._use = 1.0
            self._order = [self._entry(unit) for unit in self._resident]
            heapq.heapify(self._order)

    def _read(self, layer: int, missing: Sequence[int], kept: Sequence[int]) -> ExpertReads:
        """Start to read as many of the missing experts as fit next to those that are kept."""
        units = self._units[layer]
        keep = {units[expert] for expert in kept}
        room = self._num_bytes - total_bytes(keep)
        wanted: list[int] = []
        for expert in missing:
            room -= units[expert].num_bytes
            if room < 0:
                break
            wanted.append(expert)
        new = [units[expert] for expert in wanted]
        self._make_room(total_bytes(new), keep)
        self._left -= total_bytes(new)
        self._resident.update(new)
        for unit in new:
            heapq.heappush(self._order, self._entry(unit))
        return ExpertReads(tuple(wanted), self._reader.start(new))

    def _make_room(self, num_bytes: int, keep: set[Unit]) -> None:
        kept = []
        while num_bytes > self._left:
            score, _, unit = heapq.heappop(self._order)
            if score != self._scores[unit]:  # used since; scores only grow
                heapq.heappush(self._order, self._entry(unit))
            elif unit in keep:
                kept.append(unit)
            else:
                self._resident.remove(unit)
                self._left += unit.num_bytes
                self._reader.drop(unit)
        for unit in kept:
            heapq.heappush(self._order, self._entry(unit))

    def _entry(self, unit: Unit) -> tuple[float, int, Unit]:
        return self._scores[unit], unit.offset, unit
