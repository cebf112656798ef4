"""The systems before the same loads, in turns."""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console

from benchmarks.disaggregation.cell import Cell
from benchmarks.disaggregation.client import Client
from benchmarks.disaggregation.system import COLOCATED, System
from benchmarks.disaggregation.trace import Trace
from benchmarks.report import Report
from loadtool.arrivals import MaxConcurrency
from loadtool.errors import LoadToolError
from loadtool.slo import Slo
from loadtool.summary import summarise

Start = Callable[[System, Slo | None], Awaitable[Client]]
NUM_CLIENTS = 16  # of the closed loop: enough for both workers to be always busy
TTFT_TIMES, TPOT_TIMES = 4, 3  # of an unloaded system's p90, since prompts differ in length, and p50
WARM_SEED, BUSY_SEED, UNLOADED_SEED, FIRST_SEED = 0, 1, 2, 3
COLUMNS = ("trace", "system", "offered/s", "goodput/s", "of colocated", "spread %", "TTFT p50 ms", "TTFT p99 ms",
           "TPOT p50 ms", "TPOT p99 ms", "handed over %", "errors")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Terms:
    """A trace's load, and what counts as a good answer: the same for every system."""

    rate_per_s: float
    slo: Slo
    clients: Mapping[str, Client]  # by system


class Comparison:
    """Owns the results."""

    def __init__(
        self,
        systems: Sequence[System],
        start: Start,
        traces: Sequence[Trace],
        seconds: float,
        load: float,
        console: Console,
    ) -> None:
        """`start` gives a system's client for what is promised; `load` as a share of what the best system sustains."""
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
        """Runs everything: one run of each system under a trace, then the next trace, then all again."""
        terms = {trace.name: await self._terms(trace) for trace in self._traces}
        for repeat in range(repeats):
            for trace in self._traces:
                arrivals = trace.arrivals(terms[trace.name].rate_per_s, self._seconds)
                for name, client in terms[trace.name].clients.items():
                    run = await client.run(trace, arrivals, self._seconds, FIRST_SEED + repeat)
                    cell = self._cells[trace.name][name]
                    cell.add(summarise(run, terms[trace.name].slo))
                    self._console.print(f"{trace.name}, {name}: {cell.last}")
        return self._report(repeats)

    async def _terms(self, trace: Trace) -> Terms:
        """Measured by shorter runs, which also warm everything up."""
        seconds = self._seconds / 2
        first = self._systems[0]
        name, client = first.name, await self._start(first, None)
        await client.run(trace, MaxConcurrency(1), seconds / 4, WARM_SEED)
        unloaded = summarise(await client.run(trace, MaxConcurrency(1), seconds, UNLOADED_SEED), None)
        if unloaded.ttft_ms is None or unloaded.tpot_ms is None:
            failures = [f"{kind}: {each.count}, as in: {each.example}" for kind, each in unloaded.failures.items()]
            raise LoadToolError("; ".join([f"{trace.name}, {name}: no unloaded request was answered", *failures]))
        ttft_ms, tpot_ms = unloaded.ttft_ms.p90, unloaded.tpot_ms.p50
        slo = Slo(round(TTFT_TIMES * ttft_ms) / 1000, round(TPOT_TIMES * tpot_ms, 1) / 1000)
        clients = {system.name: await self._start(system, slo) for system in self._systems}
        sustained: dict[str, float] = {}
        for each, other in clients.items():
            busy = summarise(await other.run(trace, MaxConcurrency(NUM_CLIENTS), seconds, BUSY_SEED), None)
            sustained[each] = busy.requests_per_s
        rates = ", ".join(f"{name} {rate:.1f}" for name, rate in sustained.items())
        self._notes.append(
            f"{trace.name}: good is {slo} (ms); unloaded ({name}) TTFT p90 {ttft_ms:.0f} ms, TPOT p50 {tpot_ms:.1f} "
            f"ms; {NUM_CLIENTS} clients at once get answers a second from {rates}"
        )
        self._console.print(self._notes[-1])
        return Terms(self._load * max(sustained.values()), slo, clients)

    def _report(self, repeats: int) -> Report:
        report = Report("Where prompts are computed, on two engine processes each", COLUMNS)
        for trace, cells in self._cells.items():
            for name, cell in cells.items():
                report.add(trace, name, *cell.rates(cells.get(COLOCATED.name)), *cell.times(), *cell.path())
        report.notes += [
            f"goodput: answers a second within {TTFT_TIMES} times the unloaded TTFT p90 and {TPOT_TIMES} times the "
            f"unloaded TPOT p50; its limit is what is offered, {self._load:g} of what the best system sustains",
            f"medians of {repeats} runs of {self._seconds:g} s, the systems in turns; spread: from the lowest to the "
            "highest goodput, over the median; the client and the routers have the same cores as the workers",
            *self._notes,
            *(
                f"{trace}, {name}: {warning}"
                for trace, cells in self._cells.items()
                for name, cell in cells.items()
                for warning in cell.warnings()
            ),
        ]
        return report
