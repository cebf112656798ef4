"""Table of the routing comparison."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import click
import uvloop

from benchmarks.report import Report
from benchmarks.routing.oracle import run_oracle
from benchmarks.routing.run import run_workload
from benchmarks.routing.run_result import RunResult
from benchmarks.routing.system import Setting, System
from benchmarks.routing.topology import COLOCATED, DISAGGREGATED, SERVING_SPEC, Topology
from benchmarks.routing.workload import Workload, chat, mooncake

COLUMNS = ("workload", "workers", "router", "hit rate", "of oracle's", "TTFT p50 ms", "TTFT p99 ms", "load max/mean",
           "requests max/mean", "busy", "failed")  # fmt: skip
ORACLE = "oracle"
CHAT_SESSIONS_PER_S = 3.4
TRACE_LENGTH_SCALE = 1 / 32
TRACE_TIME_SCALE = 60 / 500
MAX_LAG_S = 0.1  # of the engines; with more, TTFT is unreliable


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload on a topology; the workload may depend on the number of the repeat."""

    workload: str
    topology: Topology
    make_workload: Callable[[int], Workload]

    @property
    def name(self) -> str:
        """Name for the output."""
        return f"{self.workload}, {self.topology.name}"


class RoutingTable:
    """Results of one comparison."""

    def __init__(self, systems: Sequence[System], seconds: float, repeats: int, only: str = "") -> None:
        """Select the cells whose name contains `only`. Raises ValueError if there is none."""
        self._systems = systems
        self._seconds = seconds
        self._repeats = repeats
        workloads: dict[str, Callable[[int], Workload]] = {
            "chat": lambda seed: chat(SERVING_SPEC, seconds, CHAT_SESSIONS_PER_S, seed),
            "mooncake": lambda seed: mooncake(SERVING_SPEC, seconds, TRACE_LENGTH_SCALE, TRACE_TIME_SCALE),
        }
        cells = [
            Cell(name, topology, make_workload)
            for name, make_workload in workloads.items()
            for topology in (COLOCATED, DISAGGREGATED)
        ]
        self._cells = [cell for cell in cells if only in cell.name]
        if not self._cells:
            raise ValueError(f"no cell is called {only!r}; there are {'; '.join(cell.name for cell in cells)}")
        self._results: defaultdict[tuple[str, str, str], list[RunResult]] = defaultdict(list)
        self._reusable: defaultdict[str, list[float]] = defaultdict(list)

    def measure(self, setting: Setting) -> Report:
        """Run all: one run of each system in a cell, then the next cell, then the next repeat."""
        for seed in range(1, self._repeats + 1):
            for cell in self._cells:
                workload = cell.make_workload(seed)
                self._reusable[workload.name].append(workload.reusable_share(SERVING_SPEC))
                self._note(cell, workload, ORACLE, run_oracle(cell.topology, workload))
                for system in self._systems:
                    run = run_workload(system, setting, cell.topology, workload)
                    self._note(cell, workload, system.name, uvloop.run(run))
        return self._report()

    def _note(self, cell: Cell, workload: Workload, name: str, result: RunResult) -> None:
        self._results[workload.name, cell.topology.name, name].append(result)
        click.echo(
            f"{cell.name}, {name}: hit rate {result.hit_rate:.3f}, TTFT p50 "
            f"{result.ttft_ms(50):.0f} ms, p99 {result.ttft_ms(99):.0f} ms, load {result.load_max_over_mean:.2f}, "
            f"{result.num_failed} failed, lag {result.max_lag_s * 1000:.0f} ms",
            err=True,
        )

    def _report(self) -> Report:
        report = Report("Routing: where requests go", COLUMNS)
        for (workload, topology, name), results in self._results.items():
            oracle = self._results[workload, topology, ORACLE]
            of_oracle = [each.hit_rate / best.hit_rate for each, best in zip(results, oracle, strict=True)]
            report.add(
                workload, topology, name, median(each.hit_rate for each in results), median(of_oracle),
                median(each.ttft_ms(50) for each in results), median(each.ttft_ms(99) for each in results),
                median(each.load_max_over_mean for each in results),
                median(each.requests_max_over_mean for each in results),
                median(each.busy_share for each in results), sum(each.num_failed for each in results),
            )  # fmt: skip
        report.notes.append(f"runs of each cell: {self._repeats}, of {self._seconds:.0f} s")
        report.notes += [
            f"{name}: a single unlimited cache would hit {median(shares):.3f} of the prompt tokens"
            for name, shares in self._reusable.items()
        ]
        report.notes += self._lags()
        return report

    def _lags(self) -> list[str]:
        """Return notes for runs in which the engines' process was late."""
        return [
            f"{workload}, {topology}, {name}: the engines lagged by up to {worst * 1000:.0f} ms in one of the runs"
            for (workload, topology, name), results in self._results.items()
            if (worst := max(each.max_lag_s for each in results)) > MAX_LAG_S
        ]
