"""Room for requests of batches among those in flight: what interactive requests leave.

A request of a batch starts only if no other waits in the router and workers have free sequences, of which a share stays
free. While interactive requests are in flight, batches take a small share: the more requests a worker has, the longer
are its steps, and the later the first tokens. When interactive requests need more than batches leave, the requests of
batches that started last are cancelled. They give their places back at once, and run again later.

Batches take turns. A request that has the turn waits until those of batches that run have ended. If it still has no
room, because it needs much while interactive requests are in flight, no request has the turn for as long as it had it,
and all that have room start. So neither do large requests, however many, block the others for long, nor do these keep
them from the room that interactive requests leave.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from baton.router.admission.admission import Admission
from baton.router.batches.metrics import BatchMetrics

POLL_S = 0.02  # until room that interactive requests leave is noticed
YIELD_S = 0.5  # pause after a cancellation: further requests would soon be cancelled, too
RESERVE_DIVISOR = 8  # 1/8 of the workers' sequences stays free
SHARE_DIVISOR = 4  # batches take 1/4 of the sequences while interactive requests are in flight
TURN_S = 5.0  # for which a request keeps the turn while no other of batches runs
SHARED_S = 1.0  # from the last one in flight until batches take more
MAX_EMBEDDINGS = 4  # embedding requests, which need no sequence of a decode worker

T = TypeVar("T")


class Slots:
    """The requests of batches in flight."""

    def __init__(
        self, admission: Admission, max_inflight: int, metrics: BatchMetrics, may_embed: Callable[[], bool]
    ) -> None:
        """`max_inflight`: maximum completions; `may_embed`: whether workers can respond to embedding requests now."""
        self._admission = admission
        self._may_embed = may_embed
        self._max_inflight = max_inflight
        self._metrics = metrics
        self._running: dict[asyncio.Task[Any], int] = {}  # completions, in order of their start
        self._num_embeddings = 0
        self._is_alone = False  # the request in flight runs without others of batches
        self._turn = asyncio.Lock()  # batches take turns
        self._no_turn_until_s = 0.0  # after a turn without effect; on the loop's clock
        self._ended = asyncio.Event()
        self._paused_until_s = self._shared_until_s = 0.0
        admission.on_pressure = self._give_back

    async def start(
        self, num_completions: int, work: Callable[[], Coroutine[Any, Any, T]], *, is_alone: bool = False
    ) -> asyncio.Task[T]:
        """Wait for room, in turn with other batches, and start `work()`; 0 completions: an embedding request.

        `is_alone`: no other request of a batch runs meanwhile. Interactive requests may cancel the task. Raises what
        the call of `work` raises.
        """

        def may_start() -> bool:
            return self.has_room(num_completions) and not (is_alone and self.has_any)

        loop = asyncio.get_running_loop()
        while True:
            async with self._turn:
                begun_s = idle_since_s = loop.time()
                while not may_start() and self._no_turn_until_s <= loop.time() < idle_since_s + TURN_S:
                    await self._wait_change()
                    if self.has_any:
                        idle_since_s = loop.time()
                if may_start():
                    return self._begin(num_completions, work(), is_alone)
                self._no_turn_until_s = max(self._no_turn_until_s, 2 * loop.time() - begun_s)
            while not may_start() and loop.time() < self._no_turn_until_s:
                await self._wait_change()
            if may_start():
                return self._begin(num_completions, work(), is_alone)

    async def _wait_change(self) -> None:
        """Wait until a request of a batch ends, or for `POLL_S`."""
        self._ended.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await self._ended.wait()

    def _begin(self, num_completions: int, work: Coroutine[Any, Any, T], is_alone: bool) -> asyncio.Task[T]:
        self._is_alone = is_alone
        task = asyncio.create_task(work)
        if num_completions:
            self._running[task] = num_completions
        else:
            self._num_embeddings += 1
        task.add_done_callback(self._end)
        return task

    @property
    def has_any(self) -> bool:
        """Whether requests of batches run."""
        return bool(self._running or self._num_embeddings)

    def has_room(self, num_completions: int) -> bool:
        """Return whether a request may start. One that is larger than the limits may start alone."""
        admission, now_s = self._admission, asyncio.get_running_loop().time()
        if admission.num_inflight > admission.num_deferred:
            self._shared_until_s = now_s + SHARED_S
        if now_s < self._paused_until_s or admission.num_waiting or admission.draining:
            return False
        if self._is_alone and self.has_any:
            return False
        if not num_completions:
            return self._num_embeddings < MAX_EMBEDDINGS and self._may_embed()
        num_own, num_seqs = sum(self._running.values()), admission.num_seqs
        num_used = num_own + admission.num_inflight - admission.num_deferred
        reserve = max(1, num_seqs // RESERVE_DIVISOR) if num_seqs > 1 else 0
        if num_own and now_s < self._shared_until_s and num_own + num_completions > num_seqs // SHARE_DIVISOR:
            return False
        fits = num_used + num_completions <= num_seqs - reserve and num_own + num_completions <= self._max_inflight
        if num_seqs == 0 and self._admission.limits.waits_for_worker:
            return num_used == 0  # one waits in the queue, so that the autoscaler sees it
        return fits or (num_used == 0 < num_seqs)

    def _end(self, task: "asyncio.Task[T]") -> None:
        if self._running.pop(task, None) is None:
            self._num_embeddings -= 1
        self._ended.set()

    def _give_back(self, num_completions: int) -> None:
        """Cancel the last requests until they give back so many completions."""
        num_completions -= sum(num for task, num in self._running.items() if task.cancelling())
        for task, num in reversed(self._running.items()):
            if num_completions <= 0:
                return
            if not task.cancelling():
                task.cancel()
                num_completions -= num
                self._metrics.displaced()
                self._paused_until_s = asyncio.get_running_loop().time() + YIELD_S
