"""Waves of requests that start at once, in an engine of this process."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.loop import EngineLoop
from baton.engine.outputs import StepOutput
from baton.engine.request import Request
from baton.engine.speculation.figures import SpeculationCounters

TIMEOUT_S = 600.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Wave:
    """Result of a wave."""

    outputs: list[list[int]]
    tokens_per_s: float
    num_drafted: int
    num_accepted: int


class Runner:
    """An engine on its thread, which runs waves."""

    def __init__(self, config: EngineConfig) -> None:
        self._engine = Engine(config)
        self._loop = EngineLoop(self._engine, self._take, self._fail)
        self._changed = threading.Condition()
        self._outputs: dict[str, list[int]] = {}
        self._unfinished: set[str] = set()
        self._failure: BaseException | None = None
        self._loop.start()

    def call(self, function: Callable[[Engine], T]) -> T:
        """Return the result of a function that runs between two steps."""
        return self._loop.call(function).result(TIMEOUT_S)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return self._engine.model_config.vocab_size

    def wave(self, requests: Sequence[Request]) -> Wave:
        """Run requests that start at once. Raises TimeoutError, or the error that the engine failed with."""
        before = self._drafts()
        self._outputs = {each.request_id: [] for each in requests}
        self._unfinished = set(self._outputs)
        started_s = time.perf_counter()
        self.call(lambda engine: [engine.add(each) for each in requests])
        with self._changed:
            if not self._changed.wait_for(lambda: not self._unfinished or self._failure is not None, TIMEOUT_S):
                raise TimeoutError("a wave takes too long; ask for fewer tokens")
        if self._failure is not None:
            raise self._failure
        elapsed_s = time.perf_counter() - started_s
        outputs, after = list(self._outputs.values()), self._drafts()
        return Wave(
            outputs,
            sum(map(len, outputs)) / elapsed_s,
            after.num_draft_tokens - before.num_draft_tokens,
            after.num_accepted_tokens - before.num_accepted_tokens,
        )

    def stop(self) -> None:
        """End the engine."""
        self._loop.stop()

    def _drafts(self) -> SpeculationCounters:
        return self.call(lambda engine: engine.stats().speculation)

    def _take(self, step: StepOutput) -> None:
        with self._changed:
            for output in step.outputs:
                self._outputs[output.request_id] += output.token_ids
                if output.finish_reason is not None:
                    self._unfinished.discard(output.request_id)
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
