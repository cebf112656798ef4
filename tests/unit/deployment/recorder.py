"""Events of a cluster, kept for a test that waits for them."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from baton.deployment.local.events import Event, Started
from baton.process.child import ProcessSpec

CHILD = Path(__file__).with_name("supervised_child.py")
TIMEOUT_S = 20.0


class Recorder:
    """A listener that keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    async def wait_for(self, wanted: Callable[[Event], bool]) -> Event:
        """Return the first wanted event, waiting for it if necessary."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for event in self.events:
                    if wanted(event):
                        return event
                self._changed.clear()
                await self._changed.wait()

    def pids(self) -> list[int]:
        """Return the ids of the processes that were started."""
        return [event.pid for event in self.events if isinstance(event, Started)]


def child_spec(python: str, tmp_path: Path, mode: str, name: str = "worker-0", *arguments: str) -> ProcessSpec:
    """Return a process that behaves as `mode` says."""
    return ProcessSpec(name, (python, str(CHILD), mode, *arguments), tmp_path / f"{name}.log")
