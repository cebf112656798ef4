"""Draining: taking a worker out of service, for good or until it is undrained.

1. New requests are refused; routers and the registry see the worker as draining.
2. Running requests have a timeout to finish.
3. Requests that have not finished by then are handed off: routers send them to other workers, which pull their KV
   from this one. It waits until each pull has begun, or until the router releases the request: its client has left, or
   its next worker does not need the KV (`HandOffs`).
4. Once no peer reads its KV any more, the worker is drained. It may end, or take requests again (`undo`).
"""

import asyncio
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum

from baton.worker.hand_offs import HandOffs

HAND_OFF_S = 2.0  # maximum wait after the hand-off for other workers to begin pulling KV
PULL_S = 30.0  # time after that for them to finish


class DrainConflict(Exception):
    """A drain and an undrain that exclude each other; the text says which of them failed and why."""


class DrainState(Enum):
    """States of a worker between taking requests and having none."""

    SERVING = "serving"
    DRAINING = "draining"  # requests finish or are handed off
    DRAINED = "drained"  # no request is left and no peer reads KV


class Drain:
    """The drain state of one worker and the count of its requests."""

    def __init__(self) -> None:
        self.handed_off = HandOffs()
        self._num_requests = 0
        self._state = DrainState.SERVING
        self._change = asyncio.Event()  # set when the state changes, then replaced
        self._is_final = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._hand_offs: list[Callable[[], None]] = []
        self._watchers: list[Callable[[], None]] = []
        self._end_s = math.inf  # deadline of running requests, by the event loop's clock
        self._deadline_changed = asyncio.Event()
        self._drain_task: asyncio.Task[int] | None = None  # shared by all callers of `run`
        self._successor: Drain | None = None  # of the worker's next life

    @property
    def state(self) -> DrainState:
        """Whether the worker takes requests, still has some to finish, or has none left."""
        return self._state

    @property
    def has_begun(self) -> bool:
        """Whether new requests are refused."""
        return self._state is not DrainState.SERVING

    @property
    def num_requests(self) -> int:
        """Requests that have begun and not ended."""
        return self._num_requests

    def succeed(self) -> "Drain":
        """Return the drain of the worker's next life, which also counts what this one counts, now and later.

        These are reads of KV by peers: the pool outlives the change.
        """
        self._successor = Drain()
        for _ in range(self._num_requests):
            self._successor.enter()
        return self._successor

    def listen(self, hand_off: Callable[[], None]) -> None:
        """Register `hand_off`, which is called when the drain's timeout expires.

        It must hand off every request, and add each whose KV may be pulled to `handed_off`.
        """
        self._hand_offs.append(hand_off)

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call `on_end` after every request that ends."""
        self._watchers.append(on_end)

    def begin(self, final: bool = False) -> None:
        """Refuse new requests from now on. A `final` drain cannot be undone: the worker ends after it."""
        self._is_final = self._is_final or final
        if not self.has_begun:
            self._enter_state(DrainState.DRAINING)

    def undo(self) -> None:
        """Take requests again; no-op for a worker that serves. Raises DrainConflict if the worker is about to end."""
        if self._is_final:
            raise DrainConflict("the worker is shutting down and cannot be undrained; start it again instead")
        if not self.has_begun:
            return
        if self._drain_task is not None:
            self._drain_task.cancel()  # no-op once it has ended; an expired deadline hands nothing off any more
        self._drain_task, self._end_s = None, math.inf
        self.handed_off.clear()
        self._enter_state(DrainState.SERVING)

    async def wait_change(self, state: DrainState) -> DrainState:
        """Return the new state once it differs from `state`."""
        while self._state is state:
            await self._change.wait()
        return self._state

    def enter(self) -> None:
        """Count a new request."""
        self._num_requests += 1
        self._idle.clear()
        if self._successor is not None:
            self._successor.enter()

    def leave(self) -> None:
        """Count the end of a request, and call the watchers."""
        self._num_requests -= 1
        assert self._num_requests >= 0
        if self._num_requests == 0:
            self._idle.set()
        for on_end in self._watchers:
            on_end()
        if self._successor is not None:
            self._successor.leave()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count a request for the duration of a `with` block."""
        self.enter()
        try:
            yield
        finally:
            self.leave()

    async def wait_idle(self) -> None:
        """Return once no request is left."""
        await self._idle.wait()

    async def run(self, timeout_s: float, final: bool = False) -> int:
        """Drain, and return the number of requests that did not finish in time.

        Requests have `timeout_s` to finish; of several callers the earliest deadline counts. The drain continues if
        the caller is cancelled. Raises DrainConflict if the drain is undone meanwhile.
        """
        self.begin(final)
        self._end_s = min(self._end_s, asyncio.get_running_loop().time() + timeout_s)
        self._deadline_changed.set()
        if self._drain_task is None or (self._drain_task.done() and not self._idle.is_set()):  # new readers of its KV
            self._drain_task = asyncio.create_task(self._run(), name="drain")
        drain_task = self._drain_task
        await asyncio.wait((drain_task,))
        if drain_task.cancelled():
            raise DrainConflict("the worker was undrained before its drain had ended")
        return drain_task.result()

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
        """Wait for requests until the deadline, then hand off the rest; return how many did not finish."""
        while not self._idle.is_set():
            self._deadline_changed.clear()
            left_s = self._end_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                return await self._hand_off()
            waits = [asyncio.ensure_future(each.wait()) for each in (self._idle, self._deadline_changed)]
            try:
                await asyncio.wait(waits, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        return 0

    async def _hand_off(self) -> int:
        num_requests = self._num_requests
        if not self._hand_offs:
            return num_requests  # prompts of decode workers, which ask another worker or compute them themselves
        for hand_off in self._hand_offs:
            hand_off()
        with suppress(TimeoutError):
            async with asyncio.timeout(HAND_OFF_S):
                await self.handed_off.wait_released()
        self.handed_off.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(PULL_S):
                await self.wait_idle()
        return num_requests
