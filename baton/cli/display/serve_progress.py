"""Displays of `baton serve`: bars in a terminal, plain lines elsewhere."""

import io
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from baton.deployment.local.cluster_plan import ClusterPlan
from baton.deployment.local.events import ClusterReady, Died, Ending, Event, GivenUp, Progressed, Started, Warned
from baton.process.progress import Loading, Ready

Announce = Callable[[ClusterReady], RenderableType]


class ServeDisplay(Protocol):
    """Shows a cluster's events."""

    def show(self, event: Event) -> None:
        """Shows one event."""
        ...

    def close(self) -> None:
        """Leaves the terminal as it was."""
        ...


def open_display(plan: ClusterPlan, announce: Announce) -> ServeDisplay:
    """The display that suits standard output; what its encoding lacks, such as a name in a warning, is shown as ?."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    console = ServeConsole(highlight=False, soft_wrap=True)
    rendezvous = ["rendezvous"] if plan.rendezvous is not None else []
    names = [*rendezvous, "router", *(worker.worker_id for worker in plan.workers)]
    if sys.stdout.isatty():
        return BarDisplay(console, names, announce)
    return LineDisplay(console, announce)


class ServeConsole(Console):
    """Standard output, without which the cluster serves on."""

    def on_broken_pipe(self) -> None:
        """Print nothing more, where rich would end this process."""
        with suppress(SystemExit):
            super().on_broken_pipe()


class LineDisplay:
    """One line an event, none for a step of loading."""

    def __init__(self, console: Console, announce: Announce) -> None:
        self._console = console
        self._announce = announce

    def show(self, event: Event) -> None:
        """Prints what is worth a line."""
        print_event(self._console, event, self._announce)

    def close(self) -> None:
        """Nothing to restore."""


class BarDisplay:
    """A bar for each process while any is loading; lines above it."""

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
        """Moves a bar or prints a line."""
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
        """Takes the bars away."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def print_event(console: Console, event: Event, announce: Announce) -> None:
    """Print the lines of an event, and its announcement when the cluster is ready."""
    with suppress(OSError):  # standard output is a file on a full disk, for example: the cluster serves on
        for line in describe(event):
            console.print(escape(line))
        if isinstance(event, ClusterReady):
            console.print(announce(event))


def describe(event: Event) -> list[str]:
    """Return an event in lines; none for steps of loading, or for a failure, whose reason is in the process's death."""
    match event:
        case Started(name, life, pid):
            return [f"{name}: {'starting' if life == 1 else 'starting again'} (process {pid})"]
        case Progressed(name, Ready(address)):
            return [f"{name}: ready at {address}"]
        case Died(name, reason, restart_in_s, num_deaths):
            in_a_row = f" (death {num_deaths} in a row)" if num_deaths > 1 else ""
            return [f"{name}: {reason}; starting again in {restart_in_s:.1f} s{in_a_row}"]
        case Warned(name, message):
            return [f"{name}: warning: {message}"]
        case ClusterReady(_, started_in_s):
            return [f"Ready after {started_in_s:.1f} s", ""]
        case GivenUp(reason):
            return [f"The cluster ends before it was ready: {reason.partition(chr(10))[0]}"]
        case Ending():
            return [describe_end(event)]
    return []


def describe_end(ending: Ending) -> str:
    """Say what the end waits for."""
    if ending.num_requests == 0:
        return "Ending; press Ctrl-C again to stop now"
    count = "" if ending.num_requests is None else f"{ending.num_requests} "
    noun = "request" if ending.num_requests == 1 else "requests"
    return f"Waiting for {count}{noun} to finish (up to {ending.timeout_s:g} s); press Ctrl-C again to stop now"
