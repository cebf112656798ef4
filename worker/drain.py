"""Taking a worker out of service, for good or until it is undrained.

1. New requests are refused; routers and the registry see the worker as draining.
2. Running requests may finish, for a while.
3. What has not ended by then is handed off: routers give it to other workers, which pull its KV from here.
4. Once no peer reads its KV any more, the worker is drained: it may end, or take requests again (`undo`).
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum

HAND_OFF_S = 2.0  # after the hand-off: so long others may begin to pull
PULL_S = 30.0  # and so long finish


class DrainConflict(Exception):
    """A drain and its undoing meet; the text says which of them fails and why."""


class DrainState(Enum):
    """Whether a worker takes requests."""

    SERVING = "serving"
    DRAINING = "draining"  # requests finish or are handed off
    DRAINED = "drained"  # nothing is left to wait for


class Drain:
    """Counts the requests that a worker has taken, and lets it end when none is left."""

    def __init__(self) -> None:
        self._num_requests = 0
        self._state = DrainState.SERVING
        self._change = asyncio.Event()  # of the state; a new one after each
        self._is_final = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._hand_offs: list[Callable[[], None]] = []
        self._watchers: list[Callable[[], None]] = []
        self._end_s = math.inf  # event loop's clock: until then requests may finish
        self._sooner = asyncio.Event()  # that changed
        self._course: asyncio.Task[int] | None = None  # once it is run; one for all who ask for it

    @property
    def state(self) -> DrainState:
        """Whether the worker takes requests, still has some to finish, or has finished."""
        return self._state

    @property
    def has_begun(self) -> bool:
        """Whether new requests are refused."""
        return self._state is not DrainState.SERVING

    @property
    def num_requests(self) -> int:
        """Requests taken and not ended."""
        return self._num_requests

    def listen(self, hand_off: Callable[[], None]) -> None:
        """`hand_off` is to give every request away, once the time to finish is over."""
        self._hand_offs.append(hand_off)

    def watch(self, on_end: Callable[[], None]) -> None:
        """`on_end` hears of every request's end."""
        self._watchers.append(on_end)

    def begin(self, final: bool = False) -> None:
        """Refuse new requests from now on. After a `final` drain the worker ends: it cannot be undone."""
        self._is_final = self._is_final or final
        if not self.has_begun:
            self._enter_state(DrainState.DRAINING)

    def undo(self) -> None:
        """Take requests again; no-op for a worker that serves. Raises DrainConflict if the worker is about to end."""
        if self._is_final:
            raise DrainConflict("the worker is shutting down and cannot be undrained; start it again instead")
        if not self.has_begun:
            return
        if self._course is not None:
            self._course.cancel()  # no-op once it has ended; a deadline that has just passed hands nothing off any more
        self._course, self._end_s = None, math.inf
        self._enter_state(DrainState.SERVING)

    async def wait_change(self, state: DrainState) -> DrainState:
        """Return the state once it is another than `state`."""
        while self._state is state:
            await self._change.wait()
        return self._state

    def enter(self) -> None:
        """A request was taken."""
        self._num_requests += 1
        self._idle.clear()

    def leave(self) -> None:
        """A request ended."""
        self._num_requests -= 1
        assert self._num_requests >= 0
        if self._num_requests == 0:
            self._idle.set()
        for on_end in self._watchers:
            on_end()

    @contextmanager
    def request(self) -> Iterator[None]:
        """A request, from its being taken to its end."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    async def wait_idle(self) -> None:
        """Returns once no request is left."""
        await self._idle.wait()

    async def run(self, timeout_s: float, final: bool = False) -> int:
        """Drains; requests have so many seconds to finish, or fewer if somebody else asked for that.

        Returns how many had not, once all is done for them. It goes on if the caller is cancelled. Raises DrainConflict
        if the drain is undone meanwhile.
        """
        self.begin(final)
        self._end_s = min(self._end_s, asyncio.get_running_loop().time() + timeout_s)
        self._sooner.set()
        if self._course is None or (self._course.done() and not self._idle.is_set()):  # peers read its KV once more
            self._course = asyncio.create_task(self._run(), name="drain")
        course = self._course
        await asyncio.wait((course,))
        if course.cancelled():
            raise DrainConflict("the worker was undrained before its drain had ended")
        return course.result()

    def _enter_state(self, state: DrainState) -> None:
        self._state = state
        change, self._change = self._change, asyncio.Event()
        change.set()

    async def _run(self) -> int:
        num_left = await self._finish()
        self._end_s = math.inf
        self._enter_state(DrainState.DRAINED)
        return num_left

    async def _finish(self) -> int:
        """Let requests finish, and hand off those that have not in time. Returns how many these were."""
        while not self._idle.is_set():
            self._sooner.clear()
            left_s = self._end_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return await self._hand_off()
            waits = [asyncio.ensure_future(each.wait()) for each in (self._idle, self._sooner)]
            try:
                await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return 0

    async def _hand_off(self) -> int:
        num_requests = self._num_requests
        if not self._hand_offs:
            return num_requests  # who asked for them finds another worker, or computes them itself
        for hand_off in self._hand_offs:
            hand_off()
        await asyncio.sleep(HAND_OFF_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(PULL_S):
                await self.wait_idle()
        return num_requests
