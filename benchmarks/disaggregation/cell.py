"""The runs of one system under one trace."""

from collections.abc import Callable
from statistics import median

from baton.loadtool.summary import Distribution, RunSummary


class Cell:
    """Owns the runs' summaries; figures are medians over them."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: for which requests are sent."""
        self._seconds = seconds
        self._runs: list[RunSummary] = []

    def add(self, run: RunSummary) -> None:
        """Another repeat."""
        self._runs.append(run)

    @property
    def goodputs(self) -> list[float]:
        """Good answers a second of each run. What was offered in the time is its limit: the time to the last answer's
        end, which one straggler makes long, is not in it.
        """
        return [run.goodput.num_good / self._seconds for run in self._runs if run.goodput is not None]

    @property
    def last(self) -> str:
        """The last run in words."""
        run, goodput = self._runs[-1], self.goodputs[-1]
        return f"goodput {goodput:.2f} of {run.num_sent / self._seconds:.2f} requests/s, {_errors(run)} errors"

    def rates(self, colocated: "Cell | None") -> tuple[float | str, ...]:
        """Offered, goodput, that over the colocated system's in the same repeat, and spread."""
        goodputs = self.goodputs
        offered = median(run.num_sent for run in self._runs) / self._seconds
        good = median(goodputs)
        ratios = [a / b for a, b in zip(goodputs, colocated.goodputs, strict=True) if b] if colocated else []
        spread = 100 * (max(goodputs) - min(goodputs)) / good if good else ""
        return offered, good, median(ratios) if ratios else "", spread

    def times(self) -> tuple[float | str, ...]:
        """TTFT p50 and p99, TPOT p50 and p99, in ms."""
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
        """Answers in the hundred whose prompt another worker computed, and what went wrong in all runs."""
        paths = [run.paths for run in self._runs if run.paths is not None]
        num_remote = sum(path.num_remote for path in paths)
        num_answers = num_remote + sum(path.num_local for path in paths)
        return 100 * num_remote / max(1, num_answers), sum(map(_errors, self._runs))

    def warnings(self) -> list[str]:
        """What makes the figures worth less than they look, each once."""
        return list(dict.fromkeys(warning for run in self._runs for warning in run.warnings))


def _errors(run: RunSummary) -> int:
    return run.num_failed + run.num_rejected
