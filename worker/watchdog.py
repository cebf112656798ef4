"""Ends a worker's process that stands still: whoever waits for it goes elsewhere, and its supervisor starts it again.

An engine's step that takes too long is seen from the event loop, and said. An event loop that stands still itself, or
an interpreter whose lock is not given up, is ended by a timer outside of both (`faulthandler`), which writes down where
each thread is. So is a process that was stopped for as long: what it held others have by now.
"""

import asyncio
import faulthandler
import logging
import os
import sys
from collections.abc import Awaitable, Callable

from baton.process.progress import ProgressReporter
from baton.worker.drain import Drain
from baton.worker.engine_host import EngineHost

logger = logging.getLogger(__name__)

MOST_PAUSE_S = 1.0
PAUSES = 10  # within the longest step


class Watchdog:
    """Looks at an engine now and then; to be run on its event loop."""

    def __init__(
        self,
        host: EngineHost,
        drain: Drain,
        progress: ProgressReporter,
        tell_ready: Callable[[bool], Awaitable[None]],
    ) -> None:
        """`tell_ready` hears when the worker should get no more to do, since it drains, is long at a step or waits for
        ranks of its group, and when that is over.
        """
        self._host = host
        self._drain = drain
        self._progress = progress
        self._tell_ready = tell_ready
        self._is_ready = True

    async def run(self) -> None:
        """Until cancelled, or until the process ends."""
        limit_s = self._host.max_step_s
        try:
            while True:
                faulthandler.dump_traceback_later(limit_s, exit=True)
                await asyncio.sleep(min(MOST_PAUSE_S, limit_s / PAUSES))
                if self._host.is_stuck:
                    self._end_process()
                await self._look()
        finally:
            faulthandler.cancel_dump_traceback_later()

    async def _look(self) -> None:
        is_slow = self._host.turn_s > self._host.max_step_s / 2
        is_ready = not is_slow and not self._host.is_short_of_ranks and not self._drain.has_begun
        if is_ready is self._is_ready:
            return
        self._is_ready = is_ready
        if is_slow:
            logger.warning("the engine is at one step for %.1f s", self._host.turn_s)
        await self._tell_ready(is_ready)

    def _end_process(self) -> None:
        message = (
            f"the engine is at one step for over {self._host.max_step_s:g} s; this process ends, to be started again"
        )
        logger.critical(message)
        faulthandler.dump_traceback()
        self._progress.failed(message)
        sys.stderr.flush()
        os._exit(1)  # the engine's thread cannot be ended, nor waited for
