"""The measurement of systems that take turns, each with the same prompts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import click

from benchmarks.kv_tiers.system import Prompt, System, SystemFailed
from benchmarks.report import Cell, Report

COLUMNS = ("tier", "system", "prompt", "MB", "computed TTFT ms", "fetched TTFT ms", "times as fast", "limit ms",
           "limit / fetched")  # fmt: skip
UNKNOWN = "-"


@dataclass(slots=True)
class Times:
    """TTFTs of one system in s; the first of each is not counted."""

    computed: list[float] = field(default_factory=list)
    fetched: list[float] = field(default_factory=list)


class Turns:
    """The systems of one tier, and the report that gets their rows."""

    def __init__(self, tier: str, systems: Sequence[System], report: Report) -> None:
        self._tier = tier
        self._times = {system: Times() for system in systems}
        self._report = report

    async def run(self, prompts: Sequence[Prompt], num_bytes: int) -> None:
        """Add a row of each system. `num_bytes`: of a prompt's KV; each next prompt is computed once and fetched once.

        A system that fails gets a note instead.
        """
        for system in list(self._times):
            with self._noted(system):
                await system.compute_s(prompts[0])
        for turn in range(1, len(prompts)):
            for system, times in list(self._times.items()):
                with self._noted(system):
                    times.computed.append(await system.compute_s(prompts[turn]))
                    times.fetched.append(await system.fetch_s(prompts[turn - 1]))
        for system, times in list(self._times.items()):
            with self._noted(system):
                self._report.add(self._tier, system.name, len(prompts[0]), num_bytes / 1e6, *_cells(system, times))

    @contextmanager
    def _noted(self, system: System) -> Iterator[None]:
        """Note a failure, and leave the system out from then on."""
        try:
            yield
        except SystemFailed as error:
            del self._times[system]
            add_note(self._report, f"{system.name} failed with the {self._tier} tier: {error}")


def add_note(report: Report, note: str) -> None:
    """Show a note, and add its first line to a report."""
    click.echo(note, err=True)
    report.notes.append(note.splitlines()[0])


def _cells(system: System, times: Times) -> list[Cell]:
    computed_s, fetched_s = median(times.computed[1:]), median(times.fetched[1:])
    limit_s = system.limit_s(computed_s)
    limits: list[Cell] = [UNKNOWN] * 2 if limit_s is None else [1e3 * limit_s, limit_s / fetched_s]
    return [1e3 * computed_s, 1e3 * fetched_s, computed_s / fetched_s, *limits]
