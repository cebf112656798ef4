"""The watchdog of a worker's process, which ends it if it hangs: peers then retry, and its supervisor restarts it.

The event loop detects and logs an engine step that takes too long. If the event loop itself hangs, or a thread does
not release the GIL, a timer outside of both (`faulthandler`) dumps all stack traces and ends the process. The same
happens to a process that was suspended (SIGSTOP) for that long: other workers have taken over its requests by then.
"""

import asyncio
import faulthandler
import logging
import os
import sys
from collections.abc import Awaitable, Callable

from baton.process.progress import ProgressReporter
from baton.worker.engine_host import EngineHost

logger = logging.getLogger(__name__)

MAX_CHECK_INTERVAL_S = 1.0
CHECKS_PER_STEP = 10  # at least, within the longest allowed step


class Watchdog:
    """Periodic check of an engine; runs on the worker's event loop."""

    def __init__(
        self,
        host: EngineHost,
        is_draining: Callable[[], bool],
        progress: ProgressReporter,
        set_ready: Callable[[bool], Awaitable[None]],
    ) -> None:
        """`set_ready` is called with False when the worker should get no new requests, and with True afterwards.

        The reasons: it drains, its current step is slow, or its group is short of ranks.
        """
        self._host = host
        self._is_draining = is_draining
        self._progress = progress
        self._set_ready = set_ready
        self._is_ready = True

    async def run(self) -> None:
        """Check until cancelled; end the process if the engine is stuck."""
        limit_s = self._host.max_step_s
        try:
            while True:
                faulthandler.dump_traceback_later(limit_s, exit=True)
                await asyncio.sleep(min(MAX_CHECK_INTERVAL_S, limit_s / CHECKS_PER_STEP))
                if self._host.is_stuck:
                    self._end_process()
                await self.update_readiness()
        finally:
            faulthandler.cancel_dump_traceback_later()

    async def update_readiness(self) -> None:
        """Report whether the worker is ready for requests, if that has changed."""
        is_slow = self._host.turn_s > self._host.max_step_s / 2
        is_ready = not is_slow and not self._host.is_short_of_ranks and not self._is_draining()
        if is_ready is self._is_ready:
            return
        self._is_ready = is_ready
        if is_slow:
            logger.warning("the engine's current step has taken %.1f s", self._host.turn_s)
        await self._set_ready(is_ready)

    def _end_process(self) -> None:
        message = (
            f"the engine's current step has taken over {self._host.max_step_s:g} s; ending this process for a restart"
        )
        logger.critical(message)
        faulthandler.dump_traceback()
        self._progress.failed(message)
        sys.stderr.flush()
        os._exit(1)  # the engine's thread can neither be stopped nor joined
