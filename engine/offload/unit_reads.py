"""Parallel reads of units into memory."""

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from baton.engine.offload.address_space import AddressSpace
from baton.engine.offload.counters import OffloadCounters
from baton.engine.offload.layout import Unit, total_bytes
from baton.engine.offload.weights_file import WeightsFile

THREADS = 4  # reads at once
LARGE_BYTES = 4 << 20  # units from this size on have huge pages; for smaller ones, they would be few
MOST_LARGE = 1 << 14  # units with huge pages: each takes two of the 65,530 mappings that a process may have


@dataclass(frozen=True, slots=True)
class UnitReads:
    """Reads in flight."""

    futures: Sequence[Future[None]]
    counters: OffloadCounters

    def wait(self) -> None:
        """Wait until all bytes are in memory. Raises EngineError."""
        started_s = time.monotonic()
        for future in self.futures:
            future.result()
        self.counters.progressed_s = time.monotonic()
        self.counters.waited_s += self.counters.progressed_s - started_s


class UnitReader:
    """Reads units of a file to their addresses, on threads of its own."""

    def __init__(self, file: WeightsFile, space: AddressSpace) -> None:
        self.file = file
        self.counters = OffloadCounters()
        self._space = space
        self._threads = ThreadPoolExecutor(THREADS, "weights-read")
        large = [unit for unit in file.layout.units if unit.num_bytes >= LARGE_BYTES]
        for unit in large if len(large) <= MOST_LARGE else ():
            space.prefer_huge_pages(unit.offset, unit.num_bytes)

    def start(self, units: Iterable[Unit]) -> UnitReads:
        """Start to read units, all at once."""
        units = tuple(units)
        self.file.check_unchanged()
        self.counters.num_read_bytes += total_bytes(units)
        return UnitReads([self._submit(*each) for unit in units for each in unit.chunks], self.counters)

    def drop(self, unit: Unit) -> None:
        """Give a unit's memory back."""
        self._space.drop(unit.offset, unit.num_bytes)

    def close(self) -> None:
        """Wait for reads in flight, end the threads, and close the file."""
        self._threads.shutdown(cancel_futures=True)
        self.file.close()

    def _submit(self, offset: int, num_bytes: int) -> Future[None]:
        return self._threads.submit(self.file.read_into, self._space.memory(offset, num_bytes), offset)
