"""Room for requests of batches among those in flight: what interactive requests leave.

A request of a batch starts only if no other waits in the router and workers have free sequences, of which a share stays
free. While interactive requests are in flight, batches take a small share: the more requests a worker has, the longer
are its steps, and the later the first tokens. When interactive requests need more than batches leave, the requests of
batches that started last are cancelled. They give their places back at once, and run again later.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from baton.router.admission.admission import Admission
from baton.router.batches.metrics import BatchMetrics

POLL_S = 0.02  # until room that interactive requests leave is noticed
YIELD_S = 0.5  # pause after a cancellation: further requests would soon be cancelled, too
RESERVE_DIVISOR = 8  # 1/8 of the workers' sequences stays free
SHARE_DIVISOR = 4  # batches take 1/4 of the sequences while interactive requests are in flight
SHARED_S = 1.0  # from the last one in flight until batches take more
MAX_EMBEDDINGS = 4  # embedding requests, which need no sequence of a decode worker

T = TypeVar("T")


class Slots:
    """The requests of batches in flight."""

    def __init__(self, admission: Admission, max_inflight: int, metrics: BatchMetrics) -> None:
        """`max_inflight`: maximum completions."""
        self._admission = admission
        self._max_inflight = max_inflight
        self._metrics = metrics
        self._running: dict[asyncio.Task[Any], int] = {}  # completions, in order of their start
        self._num_embeddings = 0
        self._is_alone = False  # the request in flight runs without others of batches
        self._turn = asyncio.Lock()  # batches take turns
        self._ended = asyncio.Event()
        self._paused_until_s = self._shared_until_s = 0.0
        admission.on_pressure = self._give_back

    async def start(
        self, num_completions: int, work: Coroutine[Any, Any, T], *, is_alone: bool = False
    ) -> asyncio.Task[T]:
        """Wait for room, in turn with other batches, and start `work`; 0 completions: an embedding request.

        `is_alone`: no other request of a batch runs meanwhile. Interactive requests may cancel the task.
        """
        try:
            async with self._turn:
                while (is_alone and self._has_any) or not self._has_room(num_completions):
                    self._ended.clear()
                    try:
                        await asyncio.wait_for(self._ended.wait(), POLL_S)
                    except TimeoutError:
                        continue
        except BaseException:
            work.close()
            raise
        self._is_alone = is_alone
        task = asyncio.create_task(work)
        if num_completions:
            self._running[task] = num_completions
        else:
            self._num_embeddings += 1
        task.add_done_callback(self._end)
        return task

    @property
    def _has_any(self) -> bool:
        return bool(self._running or self._num_embeddings)

    def _has_room(self, num_completions: int) -> bool:
        """Return whether a request may start. One that is larger than the limits may start alone."""
        admission, now_s = self._admission, asyncio.get_running_loop().time()
        if admission.num_inflight > admission.num_deferred:
            self._shared_until_s = now_s + SHARED_S
        if now_s < self._paused_until_s or admission.num_waiting or admission.draining:
            return False
        if self._is_alone and self._has_any:
            return False
        if not num_completions:
            return self._num_embeddings < MAX_EMBEDDINGS
        num_own, num_seqs = sum(self._running.values()), admission.num_seqs
        num_used = num_own + admission.num_inflight - admission.num_deferred
        reserve = max(1, num_seqs // RESERVE_DIVISOR) if num_seqs > 1 else 0
        if num_own and now_s < self._shared_until_s and num_own + num_completions > num_seqs // SHARE_DIVISOR:
            return False
        fits = num_used + num_completions <= num_seqs - reserve and num_own + num_completions <= self._max_inflight
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
