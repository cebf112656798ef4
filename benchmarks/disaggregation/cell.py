"""Runs of one system under one trace."""

from collections.abc import Callable
from statistics import median

from baton.loadtool.summary import Distribution, RunSummary


class Cell:
    """Summaries of the runs; results are medians over them."""

    def __init__(self, seconds: float) -> None:
        """Start empty. `seconds` is how long requests are sent."""
        self._seconds = seconds
        self._runs: list[RunSummary] = []

    def add(self, run: RunSummary) -> None:
        """Add a repeat."""
        self._runs.append(run)

    @property
    def goodputs(self) -> list[float]:
        """Return each run's requests within the SLO per second of sending.

        The time to the end of the last request is not used, because one straggler would dominate it.
        """
        return [run.goodput.num_good / self._seconds for run in self._runs if run.goodput is not None]

    @property
    def last(self) -> str:
        """Description of the last run."""
        run, goodput = self._runs[-1], self.goodputs[-1]
        return f"goodput {goodput:.2f} of {run.num_sent / self._seconds:.2f} requests/s, {_errors(run)} errors"

    def rates(self, colocated: "Cell | None") -> tuple[float | str, ...]:
        """Return offered rate, goodput, its ratio to the colocated system in the same repeat, and spread."""
        goodputs = self.goodputs
        offered = median(run.num_sent for run in self._runs) / self._seconds
        good = median(goodputs)
        ratios = [a / b for a, b in zip(goodputs, colocated.goodputs, strict=True) if b] if colocated else []
        spread = 100 * (max(goodputs) - min(goodputs)) / good if good else ""
        return offered, good, median(ratios) if ratios else "", spread

    def times(self) -> tuple[float | str, ...]:
        """Return TTFT p50 and p99, and TPOT p50 and p99, in ms."""
        metrics: tuple[Callable[[RunSummary], Distribution | None], ...] = (
            lambda run: run.ttft_ms,
            lambda run: run.tpot_ms,
        )
        figures: list[float | str] = []
        for metric in metrics:
            times = [found for run in self._runs if (found := metric(run)) is not None]
            figures += [median(each.p50 for each in times), median(each.p99 for each in times)] if times else ["", ""]
        return tuple(figures)

    def path(self) -> tuple[float, int]:
        """Return the percentage of requests prefilled by another worker, and the number of errors in all runs."""
        paths = [run.paths for run in self._runs if run.paths is not None]
        num_remote = sum(path.num_remote for path in paths)
        num_answers = num_remote + sum(path.num_local for path in paths)
        return 100 * num_remote / max(1, num_answers), sum(map(_errors, self._runs))

    def warnings(self) -> list[str]:
        """Return the distinct reasons to distrust the results."""
        return list(dict.fromkeys(warning for run in self._runs for warning in run.warnings))


def _errors(run: RunSummary) -> int:
    return run.num_failed + run.num_rejected
