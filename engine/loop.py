"""The thread that steps an engine."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar

import torch

from engine.engine import Engine
from engine.outputs import StepOutput

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EngineLoop:
    """Owns an engine on a thread of its own; others reach it through calls that run between steps."""

    def __init__(
        self, engine: Engine, on_step: Callable[[StepOutput], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        """`on_step` and `on_failure` are called on the engine's thread; after a failure the loop has ended."""
        self._engine = engine
        self._on_step = on_step
        self._on_failure = on_failure
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self.last_step_at_s = time.monotonic()

    def start(self) -> None:
        """Begins to step."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the step in progress, and waits for that."""

        def end() -> None:
            self._stopping = True

        self._calls.put(end)
        self._thread.join()

    def call(self, function: Callable[[Engine], T]) -> "Future[T]":
        """Runs `function(engine)` between two steps; the future has its result or exception."""
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = function(self._engine)
            except Exception as error:  # handed to the caller, whose mistake it is
                future.set_exception(error)
            else:
                future.set_result(result)

        self._calls.put(run)
        return future

    def _run(self) -> None:
        if self._engine.config.num_threads is not None:
            torch.set_num_threads(self._engine.config.num_threads)
        try:
            may_progress = True
            while not self._stopping:
                self._run_calls(wait=not (may_progress and self._engine.has_work))
                if not self._stopping and self._engine.has_work:
                    output = self._engine.step()
                    may_progress = bool(output.outputs or output.receiving)
                    self.last_step_at_s = time.monotonic()
                    if may_progress:
                        self._on_step(output)
        except BaseException as error:
            logger.exception("the engine failed")
            self._on_failure(error)

    def _run_calls(self, wait: bool) -> None:
        """Runs the calls that are there; waits for one if nothing but a call can change anything."""
        try:
            self._calls.get(block=wait)()
            while True:
                self._calls.get_nowait()()
        except Empty:
            return
