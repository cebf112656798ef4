"""Displays of `baton serve`: progress bars in a terminal, plain lines elsewhere, records with --log-format json."""

import io
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from baton.deployment.local.cluster_plan import ClusterPlan
from baton.deployment.local.events import ClusterReady, Died, Ending, Event, GivenUp, Progressed, Started, Warned
from baton.process.log_format import LogSource
from baton.process.log_settings import LogSettings
from baton.process.logs import log_uncaught_exceptions, set_up_logging
from baton.process.progress import Loading, Ready

Announce = Callable[[ClusterReady], RenderableType]
logger = logging.getLogger("baton.serve")


class ServeDisplay(Protocol):
    """Display of a cluster's events."""

    def show(self, event: Event) -> None:
        """Show one event."""
        ...

    def close(self) -> None:
        """Restore the terminal."""
        ...


def open_display(plan: ClusterPlan, announce: Announce) -> ServeDisplay:
    """Return the display of a cluster in this process.

    Text goes to standard output, with `?` for characters that its encoding lacks.
    """
    if plan.log.format == "json":
        return LogDisplay(plan.url, plan.log)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = ServeConsole(highlight=False, soft_wrap=True)
    rendezvous = ["rendezvous"] if plan.rendezvous is not None else []
    names = [*rendezvous, "router", *(worker.worker_id for worker in plan.workers)]
    if sys.stdout.isatty():
        return BarDisplay(console, names, announce)
    return LineDisplay(console, announce)


def open_line_display(plan: ClusterPlan, announce: Announce) -> ServeDisplay:
    """Return the display of a cluster whose processes do not report how much they have loaded."""
    if plan.log.format == "json":
        return LogDisplay(plan.url, plan.log)
    return LineDisplay(ServeConsole(highlight=False, soft_wrap=True), announce)


class ServeConsole(Console):
    """Standard output; the cluster keeps serving if it is closed."""

    def on_broken_pipe(self) -> None:
        """Stop printing, instead of exiting as rich does."""
        with suppress(SystemExit):
            super().on_broken_pipe()


class LineDisplay:
    """One line an event; loading progress is not printed."""

    def __init__(self, console: Console, announce: Announce) -> None:
        self._console = console
        self._announce = announce

    def show(self, event: Event) -> None:
        """Print the event, unless it is loading progress."""
        print_event(self._console, event, self._announce)

    def close(self) -> None:
        """Do nothing: lines leave nothing to restore."""


class LogDisplay:
    """One record of this process's log for each event; loading progress is not logged."""

    def __init__(self, url: str, log: LogSettings) -> None:
        """Set up this process's log. `url`: the cluster's."""
        set_up_logging(LogSource("serve"), log)
        log_uncaught_exceptions()
        self._url = url

    def show(self, event: Event) -> None:
        """Log the event, unless it is loading progress."""
        if isinstance(event, ClusterReady):
            logger.info("serving at %s, ready after %.1f s", self._url, event.started_in_s)
            return
        level = logging.WARNING if isinstance(event, Warned | Died | GivenUp) else logging.INFO
        for line in describe(event):
            logger.log(level, "%s", line)

    def close(self) -> None:
        """Do nothing: the terminal was not changed."""


class BarDisplay:
    """A progress bar for each process until the cluster is ready, with lines above the bars."""

    def __init__(self, console: Console, names: list[str], announce: Announce) -> None:
        self._console = console
        self._announce = announce
        self._names = names
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._is_ready = False
        self._open_bars()

    def _open_bars(self) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=32),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._tasks = {name: self._bars.add_task(name, total=1.0, state="starting") for name in self._names}
        self._bars.start()

    def show(self, event: Event) -> None:
        """Move a bar or print a line."""
        if self._bars is not None and isinstance(event, Started | Progressed):
            self._move(self._bars, event)
            return
        if isinstance(event, ClusterReady | GivenUp | Ending):
            self.close()
        print_event(self._console, event, self._announce)

    def _move(self, bars: Progress, event: Started | Progressed) -> None:
        task = self._tasks[event.name]
        match event:
            case Started():
                bars.update(task, completed=0.0, state="starting")
            case Progressed(progress=Loading(fraction)):
                bars.update(task, completed=fraction, state="loading")
            case Progressed(progress=Ready()):
                bars.update(task, completed=1.0, state="ready")
                bars.stop_task(task)

    def close(self) -> None:
        """Remove the bars."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def print_event(console: Console, event: Event, announce: Announce) -> None:
    """Print the lines of an event, and its announcement when the cluster is ready."""
    with suppress(OSError):  # such as a full disk: the cluster keeps serving
        for line in describe(event):
            console.print(escape(line))
        if isinstance(event, ClusterReady):
            console.print(announce(event))


def describe(event: Event) -> list[str]:
    """Return the lines for an event; none for loading progress, or for a failure, whose reason is in `Died`."""
    match event:
        case Started(name, life, pid):
            return [f"{name}: {'starting' if life == 1 else 'restarting'} (process {pid})"]
        case Progressed(name, Ready(address)):
            return [f"{name}: ready at {address}"]
        case Died(name, reason, restart_in_s, num_deaths):
            in_a_row = f" (death {num_deaths} in a row)" if num_deaths > 1 else ""
            return [f"{name}: {reason}; restarting in {restart_in_s:.1f} s{in_a_row}"]
        case Warned(name, message):
            return [f"{name}: warning: {message}"]
        case ClusterReady(_, started_in_s):
            return [f"Ready after {started_in_s:.1f} s", ""]
        case GivenUp(reason):
            return [f"Startup failed: {reason.partition(chr(10))[0]}"]
        case Ending():
            return [describe_end(event)]
    return []


def describe_end(ending: Ending) -> str:
    """Return the line for a shutdown, with the requests it waits for."""
    if ending.num_requests == 0:
        return "Shutting down; press Ctrl-C again to stop now"
    count = "" if ending.num_requests is None else f"{ending.num_requests} "
    noun = "request" if ending.num_requests == 1 else "requests"
    return f"Waiting for {count}{noun} to finish (up to {ending.timeout_s:g} s); press Ctrl-C again to stop now"
