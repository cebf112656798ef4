"""Interference by other processes during a measurement, from the system's CPU counters."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import psutil

STAT = Path("/proc/stat")
MAX_OTHERS, MAX_STEAL = 0.03, 0.02  # of the cores' time
IDLE, IOWAIT, STEAL = 3, 4, 7  # positions in a core's line of /proc/stat
NUM_TIMES = 8  # guest times follow, which are already included


@dataclass(frozen=True, slots=True)
class CoreTimes:
    """CPU seconds since boot: summed over some cores, and of the benchmark's own processes."""

    at_s: float
    busy_s: float  # without steal
    steal_s: float
    ours_s: float


@dataclass(frozen=True, slots=True)
class Interference:
    """Fractions of the cores' time."""

    others: float  # used by other processes
    steal: float  # taken by the hypervisor

    @property
    def is_much(self) -> bool:
        """Whether the measurement must be discarded."""
        return self.others > MAX_OTHERS or self.steal > MAX_STEAL

    @property
    def total(self) -> float:
        """Sum of both."""
        return self.others + self.steal


def between(before: CoreTimes, after: CoreTimes, num_cores: int) -> Interference:
    """Return the interference between two readings."""
    seconds = (after.at_s - before.at_s) * num_cores
    others = (after.busy_s - before.busy_s) - (after.ours_s - before.ours_s)
    return Interference(max(0.0, others / seconds), (after.steal_s - before.steal_s) / seconds)


def look(cores: Collection[int]) -> CoreTimes:
    """Read the counters; this process and its descendants count as own."""
    busy, steal = parse_stat(STAT.read_text(), cores)
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return CoreTimes(perf_counter(), busy * tick_s, steal * tick_s, _cpu_s(psutil.Process()))


def parse_stat(text: str, cores: Collection[int]) -> tuple[int, int]:
    """Return the busy and stolen ticks of these cores from the text of /proc/stat."""
    names = {f"cpu{core}" for core in cores}
    busy = steal = 0
    for line in text.splitlines():
        name, *fields = line.split()
        if name in names:
            ticks = [int(field) for field in fields[:NUM_TIMES]]
            busy += sum(ticks) - ticks[IDLE] - ticks[IOWAIT] - ticks[STEAL]
            steal += ticks[STEAL]
    return busy, steal


def _cpu_s(process: psutil.Process) -> float:
    seconds = 0.0
    for each in (process, *process.children(recursive=True)):
        times = each.cpu_times()
        seconds += times.user + times.system + times.children_user + times.children_system
    return seconds
