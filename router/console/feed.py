"""The console's stream of states: computed once a second for all viewers, while there is at least one."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from baton.router.errors import Draining
from baton.rpc.status import Unavailable

logger = logging.getLogger(__name__)

INTERVAL_S = 1.0
MAX_VIEWERS = 16


class Viewer:
    """The latest state for one browser. A browser that reads slowly misses states, and holds up nothing."""

    def __init__(self) -> None:
        self._state: bytes | None = None
        self._change = asyncio.Event()

    def put(self, state: bytes | None) -> None:
        """Replace the state that has not been taken. None: there are no further ones."""
        self._state = state
        self._change.set()

    async def take(self) -> bytes | None:
        """Wait for a state that was not taken yet, and return it; None at the end."""
        await self._change.wait()
        self._change.clear()
        return self._state


class ConsoleFeed:
    """The viewers, and the task that computes the states for them."""

    def __init__(
        self, compute: Callable[[], Awaitable[bytes]], interval_s: float = INTERVAL_S, max_viewers: int = MAX_VIEWERS
    ) -> None:
        """`compute` returns the current state. Nothing runs without a viewer."""
        self._compute = compute
        self._interval_s = interval_s
        self._max_viewers = max_viewers
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._has_ended = False

    @property
    def is_running(self) -> bool:
        """Whether states are computed."""
        return self._task is not None

    def check_room(self) -> None:
        """Raise Unavailable if there are too many viewers, or Draining."""
        if self._has_ended:
            raise Draining("the router is shutting down")
        if len(self._viewers) >= self._max_viewers:
            raise Unavailable(f"{self._max_viewers} browsers show the console already; close one of them")

    @contextmanager
    def viewer(self) -> Iterator[Viewer]:
        """Add a viewer for the duration of a `with` block. Raises as `check_room`."""
        self.check_room()
        viewer = Viewer()
        self._viewers.add(viewer)
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="console")
        try:
            yield viewer
        finally:
            self._viewers.remove(viewer)
            if not self._viewers:
                self._stop()

    def end(self) -> None:
        """End the streams of all viewers, and take no further ones."""
        self._has_ended = True
        self._stop()
        for viewer in self._viewers:
            viewer.put(None)

    def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()

    async def _run(self) -> None:
        while True:
            try:
                state = await self._compute()
            except Exception:  # the page must not freeze for good because of one state
                logger.exception("the console's state could not be computed")
            else:
                for viewer in self._viewers:
                    viewer.put(state)
            await asyncio.sleep(self._interval_s)
