"""Real CPU workers with a small random checkpoint, for fuzzers that run without an event loop."""

import asyncio
import itertools
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import psutil

from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.embedding_models import add_pooling
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import WorkerProcess, worker_process
from tests.oracle import Oracle

T = TypeVar("T")

PROMPT = [3 + 7 * number % (VOCAB_SIZE - 3) for number in range(70)]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PATIENCE_S = 60.0
MAX_GROWTH_BYTES = 300 << 20


class WorkerRig:
    """A prefill and a decode worker."""

    def __init__(self, directory: Path) -> None:
        self._numbers = itertools.count()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._stack = AsyncExitStack()
        model = add_pooling(make_checkpoint("qwen3", directory / "model"), "mean")
        self._expected = Oracle(model).greedy(PROMPT, GREEDY.max_tokens)
        self.prefill: WorkerProcess
        self.decode: WorkerProcess
        self.prefill, self.decode = self.run(self._start(model, directory))
        self.descriptions = [self.run(worker.describe()) for worker in (self.prefill, self.decode)]
        self._num_bytes = self._memory()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop and return its result."""
        return self._runner.run(work)

    async def _start(self, model: Path, directory: Path) -> tuple[WorkerProcess, WorkerProcess]:
        starting = [worker_process(role, model, directory, "--log-level=error") for role in ("prefill", "decode")]
        prefill, decode = [await self._stack.enter_async_context(each) for each in starting]
        return prefill, decode

    def check_serves(self) -> None:
        """Fail unless a handover gives the right tokens, no block is held and memory has not grown."""
        self.run(self._check_serves())
        assert self._memory() - self._num_bytes < MAX_GROWTH_BYTES

    async def _check_serves(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(self.prefill.wait_idle(), self.decode.wait_idle())
            async with decode_client(self.decode) as client:
                for peer in (None, await self.prefill.peer()):
                    # A unique salt, so that the prompt is in no cache.
                    salt = f"check {next(self._numbers)}"
                    generation = await client.submit(PROMPT, GREEDY, peer, cache_salt=salt)
                    await generation.ended.wait()
                    assert generation.token_ids == self._expected
                    assert generation.served_by.handed_over_tokens == (len(PROMPT) if peer is not None else 0)
            await asyncio.gather(self.prefill.wait_idle(), self.decode.wait_idle())

    def _memory(self) -> int:
        return sum(int(psutil.Process(each.child.pid).memory_info().rss) for each in (self.prefill, self.decode))

    def close(self) -> None:
        """End the workers; check their exit status, and their logs for tracebacks."""
        self.run(self._stack.aclose())
        self._runner.close()
