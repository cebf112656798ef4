"""Outputs of recently finished requests, for a client that reconnects through another router.

Only tokens are kept. Slots and KV blocks are released when a request ends, as usual; the blocks stay in the prefix
cache, where the next command finds them.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass

from baton.protos.worker_pb2 import RecalledOutput
from baton.worker.reporting import WorkerCounters

MAX_REQUESTS = 4096
MAX_TOKENS = 1 << 21  # over all outputs; a few bytes each


@dataclass(frozen=True, slots=True)
class _Kept:
    """An output, and the event loop's time at which it expires."""

    output: RecalledOutput
    expires_s: float


class RememberedOutputs:
    """Outputs by resume key, oldest first; bounded in number, tokens and time."""

    def __init__(
        self,
        counters: WorkerCounters,
        keep_s: float,
        max_requests: int = MAX_REQUESTS,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        """`keep_s`: seconds that an output is kept; 0 keeps none."""
        self._counters = counters
        self._keep_s = keep_s
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._kept: OrderedDict[bytes, _Kept] = OrderedDict()
        self._num_tokens = 0
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, output: RecalledOutput) -> None:
        """Keep the output of a finished request; it replaces an earlier one with the same key."""
        if not self._keep_s or not output.token_ids or len(output.token_ids) > self._max_tokens:
            return
        self._drop(output.resume_key)
        loop = asyncio.get_running_loop()
        self._kept[output.resume_key] = _Kept(output, loop.time() + self._keep_s)
        self._num_tokens += len(output.token_ids)
        while len(self._kept) > self._max_requests or self._num_tokens > self._max_tokens:
            self._drop(next(iter(self._kept)))
        if self._timer is None:
            self._timer = loop.call_later(self._keep_s, self._expire)
        self._counters.num_remembered = len(self._kept)

    def find(self, resume_key: bytes) -> RecalledOutput | None:
        """Return a request's output, or None. It stays: the next router may fail too."""
        kept = self._kept.get(resume_key)
        return None if kept is None else kept.output

    def close(self) -> None:
        """Drop all outputs and stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._kept.clear()
        self._num_tokens = self._counters.num_remembered = 0

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._kept:
            resume_key, oldest = next(iter(self._kept.items()))
            if oldest.expires_s > loop.time():
                self._timer = loop.call_at(oldest.expires_s, self._expire)
                break
            self._drop(resume_key)
        self._counters.num_remembered = len(self._kept)

    def _drop(self, resume_key: bytes) -> None:
        kept = self._kept.pop(resume_key, None)
        if kept is not None:
            self._num_tokens -= len(kept.output.token_ids)
