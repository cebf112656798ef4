"""What `baton serve` shows: bars in a terminal, plain lines elsewhere, and how to ask for something."""

import json
import sys
from pathlib import Path
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from baton.deployment.cluster_plan import ClusterPlan
from baton.deployment.events import ClusterReady, Died, Ending, Event, Progressed, Started
from baton.rpc.progress import Loading, Ready


class ServeDisplay(Protocol):
    """Shows a cluster's events."""

    def show(self, event: Event) -> None:
        """Shows one event."""
        ...

    def close(self) -> None:
        """Leaves the terminal as it was."""
        ...


def open_display(plan: ClusterPlan, log_dir: Path) -> ServeDisplay:
    """The display that suits standard output."""
    console = Console(highlight=False, soft_wrap=True)
    names = ["router", *(worker.worker_id for worker in plan.workers)]
    announcement = announce(plan, log_dir)
    if sys.stdout.isatty():
        return BarDisplay(console, names, announcement)
    return LineDisplay(console, announcement)


def announce(plan: ClusterPlan, log_dir: Path) -> str:
    """How to reach a ready cluster."""
    roles = [worker.role for worker in plan.workers]
    pools = " + ".join(f"{roles.count(role)} {role}" for role in dict.fromkeys(roles))
    name = plan.router.model_name
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "What does a file do?"}]})
    quoted = body.replace("'", "'\\''")
    return (
        f"Serving {name} at {plan.url} ({pools})\n\n"
        f"  curl {plan.url}/v1/chat/completions -H 'Content-Type: application/json' \\\n    -d '{quoted}'\n\n"
        f"  baton chat --url {plan.url}      baton status --url {plan.url}\n\n"
        f"Logs are in {log_dir}. Ctrl-C ends."
    )


class LineDisplay:
    """One line an event, none for a step of loading."""

    def __init__(self, console: Console, announcement: str) -> None:
        self._console = console
        self._announcement = announcement

    def show(self, event: Event) -> None:
        """Prints what is worth a line."""
        for line in describe(event, self._announcement):
            self._console.print(escape(line))

    def close(self) -> None:
        """Nothing to restore."""


class BarDisplay:
    """A bar for each process while any is loading; lines above it."""

    def __init__(self, console: Console, names: list[str], announcement: str) -> None:
        self._console = console
        self._announcement = announcement
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
        if isinstance(event, ClusterReady | Ending):
            self.close()
        for line in describe(event, self._announcement):
            self._console.print(escape(line))

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


def describe(event: Event, announcement: str) -> list[str]:
    """An event in lines; none for what is too small, or for a failure, which the process's death tells."""
    match event:
        case Started(name, life, pid):
            return [f"{name}: {'starting' if life == 1 else 'starting again'} (process {pid})"]
        case Progressed(name, Ready(address)):
            return [f"{name}: ready at {address}"]
        case Died(name, reason, restart_in_s):
            return [f"{name}: {reason}; starting again in {restart_in_s:.1f} s"]
        case ClusterReady(_, started_in_s):
            return [f"Ready after {started_in_s:.1f} s", "", announcement]
        case Ending():
            return ["Ending (Ctrl-C again: at once)"]
    return []
