"""Comparison of systems under the same loads, in turns."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from rich.console import Console

from baton.loadtool.arrivals import MaxConcurrency
from baton.loadtool.errors import LoadToolError
from baton.loadtool.slo import Slo
from baton.loadtool.summary import summarise
from benchmarks.disaggregation.cell import Cell
from benchmarks.disaggregation.client import Client
from benchmarks.disaggregation.system import COLOCATED, System
from benchmarks.disaggregation.trace import Trace
from benchmarks.report import Report

Start = Callable[[Sequence[System], Slo | None, Console], AbstractAsyncContextManager[dict[str, Client]]]
NUM_CLIENTS = 16  # of the closed loop: enough to keep both workers busy
TTFT_TIMES, TPOT_TIMES = 4, 3  # SLO as multiples of the unloaded p90 TTFT, as prompt lengths differ, and p50 TPOT
WARM_SEED, BUSY_SEED, UNLOADED_SEED, FIRST_SEED = 0, 1, 2, 3
COLUMNS = ("trace", "system", "offered/s", "goodput/s", "of colocated", "spread %", "TTFT p50 ms", "TTFT p99 ms",
           "TPOT p50 ms", "TPOT p99 ms", "handed over %", "errors")  # fmt: skip


class Comparison:
    """Results of the comparison."""

    def __init__(
        self,
        systems: Sequence[System],
        start: Start,
        traces: Sequence[Trace],
        seconds: float,
        load: float,
        console: Console,
    ) -> None:
        """`start` runs the systems with an SLO; `load` is a fraction of the best system's capacity."""
        self._systems = systems
        self._start = start
        self._traces = traces
        self._seconds = seconds
        self._load = load
        self._console = console
        self._notes: list[str] = []
        self._cells: defaultdict[str, dict[str, Cell]] = defaultdict(
            lambda: {system.name: Cell(seconds) for system in systems}
        )  # by trace, by system

    async def measure(self, repeats: int) -> Report:
        """Run all traces: one run of each system, then the next repeat."""
        for trace in self._traces:
            slo = await self._slo(trace)
            async with self._start(self._systems, slo, self._console) as clients:
                arrivals = trace.arrivals(await self._rate_per_s(trace, clients), self._seconds)
                for repeat in range(repeats):
                    for name, client in clients.items():
                        run = await client.run(trace, arrivals, self._seconds, FIRST_SEED + repeat)
                        cell = self._cells[trace.name][name]
                        cell.add(summarise(run, slo))
                        self._console.print(f"{trace.name}, {name}: {cell.last}")
        return self._report(repeats)

    async def _slo(self, trace: Trace) -> Slo:
        """Return the SLO, measured on the first system, which is started alone for this."""
        first = self._systems[0]
        async with self._start([first], None, self._console) as clients:
            client = clients[first.name]
            await client.run(trace, MaxConcurrency(1), self._seconds / 8, WARM_SEED)
            unloaded = summarise(await client.run(trace, MaxConcurrency(1), self._seconds / 2, UNLOADED_SEED), None)
        if unloaded.ttft_ms is None or unloaded.tpot_ms is None:
            failures = [f"{kind}: {each.count}, as in: {each.example}" for kind, each in unloaded.failures.items()]
            raise LoadToolError("; ".join([f"{trace.name}, {first.name}: no unloaded request was served", *failures]))
        ttft_ms, tpot_ms = unloaded.ttft_ms.p90, unloaded.tpot_ms.p50
        slo = Slo(round(TTFT_TIMES * ttft_ms) / 1000, round(TPOT_TIMES * tpot_ms, 1) / 1000)
        self._note(
            f"{trace.name}: good is {slo}; unloaded ({first.name}) TTFT p90 {ttft_ms:.0f} ms, TPOT p50 {tpot_ms:.1f} ms"
        )
        return slo

    async def _rate_per_s(self, trace: Trace, clients: Mapping[str, Client]) -> float:
        """Return the offered rate: `load` times the best system's capacity."""
        sustained: dict[str, float] = {}
        for name, client in clients.items():
            run = await client.run(trace, MaxConcurrency(NUM_CLIENTS), self._seconds / 2, BUSY_SEED)
            sustained[name] = summarise(run, None).requests_per_s
        rates = ", ".join(f"{name} {rate:.1f}" for name, rate in sustained.items())
        self._note(f"{trace.name}: requests per second with {NUM_CLIENTS} concurrent clients: {rates}")
        return self._load * max(sustained.values())

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._console.print(text)

    def _report(self, repeats: int) -> Report:
        report = Report("Where prompts are computed, on two engine processes each", COLUMNS)
        for trace, cells in self._cells.items():
            for name, cell in cells.items():
                report.add(trace, name, *cell.rates(cells.get(COLOCATED.name)), *cell.times(), *cell.path())
        report.notes += [
            f"goodput: responses per second within {TTFT_TIMES} times the unloaded TTFT p90 and {TPOT_TIMES} times the "
            f"unloaded TPOT p50; its maximum is the offered load, {self._load:g} of the best system's capacity",
            f"medians of {repeats} runs of {self._seconds:g} s, interleaved; spread: highest minus "
            "lowest goodput, divided by the median; client and routers share the workers' cores",
            *self._notes,
            *(
                f"{trace}, {name}: {warning}"
                for trace, cells in self._cells.items()
                for name, cell in cells.items()
                for warning in cell.warnings()
            ),
        ]
        return report
