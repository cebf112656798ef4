"""Progress bar of one run."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from baton.loadtool.record import RequestRecord


class ProgressBar:
    """`Watcher` that shows ended, in-flight and failed requests. Shows nothing if the console is not a terminal."""

    def __init__(self, console: Console, label: str, total: int | None) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed} ended, {task.fields[inflight]} in flight{task.fields[failed]}"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(
            *columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal
        )
        self._task = self._progress.add_task(label, total=total, inflight=0, failed="")
        self._num_inflight = self._num_failed = self._num_ended = 0

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def sent(self) -> None:
        """Count a sent request."""
        self._num_inflight += 1
        self._show()

    def ended(self, record: RequestRecord) -> None:
        """Count an ended request."""
        self._num_inflight -= 1
        self._num_ended += 1
        self._num_failed += record.failure is not None
        self._show()

    def _show(self) -> None:
        if not self._progress.disable:
            failed = f", {self._num_failed} failed" if self._num_failed else ""
            self._progress.update(self._task, completed=self._num_ended, inflight=self._num_inflight, failed=failed)
