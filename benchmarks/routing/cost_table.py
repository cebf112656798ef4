"""Table of the cost of a router's request path."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median

import click
import uvloop

from benchmarks.load import percentile
from benchmarks.report import Cell, Report
from benchmarks.routing.request_cost import RATE, RequestCost, Throughput, measure_cost, measure_throughput
from benchmarks.routing.system import Setting, System

COLUMNS = ("router", "CPU us at 3 KB", "streamed", "CPU us at 50 KB",
           "added p50 ms", "added p99 ms", "added over nothing p50 ms", "added over nothing p99 ms",
           "TTFT p50 ms", "TTFT p99 ms", "TTFT over nothing p50 ms", "TTFT over nothing p99 ms",
           "req/s, 1 process", "req/s, 2 processes")  # fmt: skip
NOTES = (
    "CPU: time of the router's processes per chat request of 8 tokens, under full load; not streamed unless the column "
    "is 'streamed'.",
    f"added: time from the request to the end of its response, with workers that respond at once, at {RATE:.0f} "
    "requests per second; TTFT: time to the first token of a stream, under the same load.",
    "nothing: a process between the same client and the same workers that only forwards: commands with the prompt's "
    "tokens, made by the client, to Baton's workers; bytes to HTTP workers; calls by the runtime's Python client to "
    "Dynamo's. Over nothing: minus the same percentile of nothing with the same workers.",
    "sglang-router forwards prompts unchanged, and its HTTP workers tokenise; its tokenising mode could not be "
    "measured, because it downloads a vocabulary at start.",
    "req/s: client, router and workers share the machine's cores, and the workers and the client are one process each.",
)


class CostTable:
    """Results of one comparison."""

    def __init__(self, systems: Sequence[System], seconds: float, repeats: int) -> None:
        self._systems = systems
        self._seconds = seconds
        self._repeats = repeats
        self._costs: defaultdict[str, list[RequestCost]] = defaultdict(list)
        self._pairs: defaultdict[str, list[Throughput]] = defaultdict(list)

    def measure(self, setting: Setting) -> Report:
        """Run every system in turn, in each repeat."""
        for seed in range(1, self._repeats + 1):
            for system in self._systems:
                click.echo(f"cost: {system.name}", err=True)
                cost = uvloop.run(measure_cost(system, setting, self._seconds, seed))
                self._costs[system.name].append(cost)
                pair = uvloop.run(measure_throughput(system, setting, 2, self._seconds, seed))
                self._pairs[system.name].append(pair)
        return self._report()

    def _report(self) -> Report:
        report = Report(
            "Cost of the request path",
            COLUMNS,
            notes=[*NOTES, f"runs of each: {self._repeats}, of {self._seconds:.0f} s"],
        )
        for system in self._systems:
            costs, floors = self._costs[system.name], self._costs.get(system.floor, [])
            report.add(
                system.name,
                _median_us(costs, lambda cost: cost.small),
                _median_us(costs, lambda cost: cost.small_streamed),
                _median_us(costs, lambda cost: cost.large),
                *_times_ms(costs, floors, lambda cost: cost.total_s),
                *_times_ms(costs, floors, lambda cost: cost.ttft_s),
                median(cost.small.requests_per_s for cost in costs),
                median(each.requests_per_s for each in self._pairs[system.name]),
            )
        return report


def _median_us(costs: Sequence[RequestCost], pick: Callable[[RequestCost], Throughput]) -> float:
    return median(pick(cost).cpu_s for cost in costs) * 1e6


def _times_ms(
    costs: Sequence[RequestCost], floors: Sequence[RequestCost], pick: Callable[[RequestCost], list[float]]
) -> list[Cell]:
    """Return p50 and p99, then both minus those of the pass-through, if that was measured."""
    own, least = ([_median_ms(each, pick, percent) for percent in (50, 99)] for each in (costs, floors or costs))
    return [*own, *(time_ms - least_ms if floors else "" for time_ms, least_ms in zip(own, least, strict=True))]


def _median_ms(costs: Sequence[RequestCost], pick: Callable[[RequestCost], list[float]], percent: int) -> float:
    return median(percentile(pick(cost), percent) * 1000 for cost in costs)
