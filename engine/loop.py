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
from baton.engine.lora.registered import RegisteredAdapter
from baton.engine.outputs import StepOutput
from baton.engine.scheduling.schedule import Schedule

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """A function to run between two steps, and the future that receives its result."""

    function: Callable[[Engine], object]
    future: "Future[Any]"

    def run(self, engine: Engine) -> None:
        """Run the function unless the future was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.function(engine)
        except Exception as error:  # raised in the caller instead: the engine is not at fault
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class EngineLoop:
    """Thread that owns an engine; other threads reach it through calls that run between steps."""

    def __init__(
        self, engine: Engine, on_step: Callable[[StepOutput], None], on_failure: Callable[[BaseException], None]
    ) -> None:
        """Create the loop. `on_step` and `on_failure` run on the engine's thread; a failure ends the loop.

        A step that fails because the engine has left its group ends the loop too, without a call of `on_failure`.
        """
        self._engine = engine
        self._on_step = on_step
        self._on_failure = on_failure
        self._calls: SimpleQueue[Call] = SimpleQueue()
        self._lock = threading.Lock()  # so that no call is queued after `_has_ended` is set
        self._is_stopping = False
        self._has_ended = False
        self._busy_since_s: float | None = None  # monotonic clock; None while idle, waiting for a call
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        engine.grammars.listen(lambda: self.call(Engine.wake))
        engine.adapters.reader = self._read_adapter

    def start(self) -> None:
        """Start the engine's thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the loop after the current step and wait until it has ended."""
        self.call(self._begin_stop)
        self._thread.join()

    @property
    def turn_s(self) -> float:
        """Seconds that the current turn (calls and a step) has taken so far, divided by the engine's
        watchdog_multiplier. 0 while idle. Counts from the engine's resumed_s if the turn began earlier.
        """
        since_s = self._busy_since_s
        if since_s is None:
            return 0.0
        multiplier = self._engine.watchdog_multiplier  # before resumed_s, which changes first
        return (time.monotonic() - max(since_s, self._engine.resumed_s)) / multiplier

    def call(self, function: Callable[[Engine], T]) -> "Future[T]":
        """Run `function(engine)` between two steps; the future receives its result or exception.

        The exception is EngineEnded if the loop has ended, or ends before it runs the call.
        """
        future: Future[T] = Future()
        with self._lock:
            if not self._has_ended:
                self._calls.put(Call(function, future))
                return future
        future.set_exception(EngineEnded("the engine has ended"))
        return future

    def _read_adapter(self, adapter: RegisteredAdapter) -> None:
        """Read a LoRA adapter on a thread of its own, while steps go on."""
        threading.Thread(target=self._provide_adapter, args=(adapter,), name="adapter", daemon=True).start()

    def _provide_adapter(self, adapter: RegisteredAdapter) -> None:
        try:
            read = self._engine.adapters.read(adapter.info.name, adapter.path)
        except EngineError as error:
            failure = error
            self.call(lambda engine: engine.adapters.fail(adapter.number, failure))
        else:
            self.call(lambda engine: engine.adapters.provide(adapter.number, read))

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
            is_expected = isinstance(error, EngineError)
            if is_expected and self._engine.has_left:
                logger.info("the engine has ended: %s", error)
                self._end()
                return
            hides_traceback = is_expected and not logger.isEnabledFor(logging.DEBUG)
            logger.error("the engine failed: %s", error, exc_info=not hides_traceback)
            self._end()
            self._on_failure(error)
        else:
            self._end()

    def _step_until_stopped(self) -> None:
        may_progress = True
        while not self._is_stopping:
            engine = self._engine
            self._run_calls(wait=not (engine.must_step or (may_progress and engine.has_work)))
            if not self._is_stopping and (engine.has_work or engine.must_step):
                schedule = engine.schedule()
                may_progress = bool(schedule.requests or schedule.receiving)
                if schedule.receiving or schedule.failed:  # reported now: filling blocks need not wait for the step
                    now_s = time.monotonic()
                    self._on_step(StepOutput(schedule.failed, schedule.receiving, finished_at_s=now_s))
                if schedule.requests or engine.must_step:
                    self._run_steps(schedule)

    def _run_steps(self, schedule: Schedule) -> None:
        """Run a step, then further steps of the same requests until a call arrives, each launched before the previous
        one has finished.

        No step is in flight when this returns: calls find the engine between two steps.
        """
        engine = self._engine
        step = engine.launch(schedule.requests)
        while step is not None:
            following = None
            if engine.looks_ahead and self._calls.empty() and (scheduled := engine.schedule_ahead(step)):
                following = engine.launch(scheduled, previous=step)
            self._on_step(engine.collect(step))
            self._busy_since_s = time.monotonic()
            step = following

    def _run_calls(self, wait: bool) -> None:
        """Run the queued calls; with `wait`, block until there is at least one."""
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
        """Close the engine and fail the calls that were not run, so that no caller waits forever."""
        self._busy_since_s = None
        try:
            self._engine.close()
        except Exception:
            logger.exception("the engine could not be closed")
        with self._lock:
            self._has_ended = True
        while not self._calls.empty():
            call = self._calls.get()
            if call.future.set_running_or_notify_cancel():
                call.future.set_exception(EngineEnded("the engine has ended"))
