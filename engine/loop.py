"""The thread that steps an engine."""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import torch

from baton.engine.engine import Engine
from baton.engine.errors import EngineEnded, EngineError
from baton.engine.execution.cores import running_on
from baton.engine.execution.device import computing_on
from baton.engine.outputs import StepOutput
from baton.engine.scheduling.schedule import Schedule

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """Something to do between two steps, and where its outcome goes."""

    function: Callable[[Engine], object]
    future: "Future[Any]"

    def run(self, engine: Engine) -> None:
        """Does it, unless nobody waits any more."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function(engine)
        except Exception as error:  # handed to the caller, whose mistake it is
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class EngineLoop:
    """Owns an engine on a thread of its own; others reach it through calls that run between steps."""

    def __init__(
        self, engine: Engine, on_step: Callable[[StepOutput], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        """`on_step` and `on_failure` are called on the engine's thread; after a failure the loop has ended."""
        self._engine = engine
        self._on_step = on_step
        self._on_failure = on_failure
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._lock = threading.Lock()  # of `_has_ended` together with the last look at `_calls`
        self._is_stopping = False
        self._has_ended = False
        self._busy_since_s: float | None = None  # monotonic clock; None: it waits for a call
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self) -> None:
        """Begins to step."""
        self._thread.start()

    def stop(self) -> None:
        """Ends after the step in progress, and waits for that."""
        self.call(self._begin_stop)
        self._thread.join()

    @property
    def turn_s(self) -> float:
        """Seconds that the present turn (calls and a step) has taken so far, as far as they count: those for which the
        engine had watchdog_multiplier count less. 0 while there is nothing to do.
        """
        since_s = self._busy_since_s
        return 0.0 if since_s is None else (time.monotonic() - since_s) / self._engine.watchdog_multiplier

    def call(self, function: Callable[[Engine], T]) -> "Future[T]":
        """Runs `function(engine)` between two steps; the future has its result or exception.

        Once the loop has ended, and for calls that it has not run by then, the exception is EngineEnded.
        """
        future: Future[T] = Future()
        with self._lock:
            if not self._has_ended:
                self._calls.put(Call(function, future))
                return future
        future.set_exception(EngineEnded("the engine has ended"))
        return future

    def _begin_stop(self, _: Engine) -> None:
        self._is_stopping = True

    def _run(self) -> None:
        config = self._engine.config
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        try:
            with running_on(self._engine.cores), computing_on(self._engine.pool.device):
                self._step_until_stopped()
        except BaseException as error:
            is_plain = isinstance(error, EngineError) and not logger.isEnabledFor(logging.DEBUG)
            logger.error("the engine failed: %s", error, exc_info=not is_plain)
            self._end()
            self._on_failure(error)
        else:
            self._end()

    def _step_until_stopped(self) -> None:
        may_progress = True
        while not self._is_stopping:
            engine = self._engine
            self._run_calls(wait=not (engine.is_called or (may_progress and engine.has_work)))
            if not self._is_stopping and (engine.has_work or engine.is_called):
                schedule = engine.schedule()
                may_progress = bool(schedule.requests or schedule.receiving)
                if schedule.receiving:  # whoever fills their blocks need not wait for the step
                    self._on_step(StepOutput(receiving=schedule.receiving, finished_at_s=time.monotonic()))
                if schedule.requests or engine.is_called:
                    self._run_steps(schedule)

    def _run_steps(self, schedule: Schedule) -> None:
        """A step, and more of the same requests for as long as nobody calls, each launched before the last one's end.

        When this returns nothing is under way: calls find the engine between two steps.
        """
        engine = self._engine
        step = engine.launch(schedule.requests)
        while step is not None:
            following = None
            if engine.looks_ahead and self._calls.empty() and (scheduled := engine.schedule_ahead(step)):
                following = engine.launch(scheduled, behind=step)
            self._on_step(engine.collect(step))
            self._busy_since_s = time.monotonic()
            step = following

    def _run_calls(self, wait: bool) -> None:
        """Runs the calls that are there; waits for one if nothing but a call can change anything."""
        self._busy_since_s = None if wait else time.monotonic()
        try:
            call = self._calls.get(block=wait)
            self._busy_since_s = time.monotonic()
            call.run(self._engine)
            while True:
                self._calls.get_nowait().run(self._engine)
        except Empty:
            return

    def _end(self) -> None:
        """Nobody waits for ever: what was not run fails."""
        self._busy_since_s = None
        self._engine.close()
        with self._lock:
            self._has_ended = True
        while not self._calls.empty():
            call = self._calls.get()
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(EngineEnded("the engine has ended"))
