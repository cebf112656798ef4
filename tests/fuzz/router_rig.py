"""A real router with simulated workers, each in its own process, for fuzzers that run without an event loop."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from tests.integration.router_process import RouterProcess, router_process, wait_router, wait_workers
from tests.integration.simulated_process import simulated
from tests.integration.workers_view import wait_idle

T = TypeVar("T")

MAX_MODEL_LEN = 256
ROLES = ("--prefill=1", "--decode=1", "--colocated=1")
SPEED = ("--step-s=0.0002", "--sequence-s=0", "--prefill-tokens-per-s=1e6", f"--max-model-len={MAX_MODEL_LEN}")
MODEL_NAME = "bundled_model"
MAX_GROWTH_BYTES = 300 << 20
START_S = 90.0
PROMPT = {"model": MODEL_NAME, "prompt": "one two three", "max_tokens": 8, "temperature": 0}


class RouterRig:
    """The processes of a router and its simulated workers."""

    def __init__(self, directory: Path) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._stack = AsyncExitStack()
        self.router: RouterProcess = self.run(self._start(directory))
        self.http = httpx.Client(base_url=self.router.url, timeout=20, trust_env=False, verify=False)
        self.expected = self.complete()
        self._process = psutil.Process(self.router.child.pid)
        self._num_bytes = self._process.memory_info().rss

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop and return its result."""
        return self._runner.run(work)

    async def _start(self, directory: Path) -> RouterProcess:
        async with asyncio.timeout(START_S):
            simulation = await self._stack.enter_async_context(simulated(*ROLES, *SPEED))
            parsers = ("--tool-call-parser=hermes", "--reasoning-parser=qwen3")
            flags = ("--port=0", "--grpc-port=0", f"--workers={simulation['addresses']}", *parsers)
            router = await self._stack.enter_async_context(router_process(directory, *flags))
            async with router.client() as client:
                await wait_workers(client, 3)
            return router

    def complete(self) -> str:
        """Return the response to a known prompt."""
        response = self.http.post("/v1/completions", json=PROMPT)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def check_serves(self) -> None:
        """Fail unless the router responds as before, has no request left, and has not grown much."""
        assert self.complete() == self.expected
        self.run(self._wait_idle())
        assert self._process.memory_info().rss - self._num_bytes < MAX_GROWTH_BYTES
        assert "Traceback" not in self.router.log(), self.router.log()[-5000:]

    async def _wait_idle(self) -> None:
        async with asyncio.timeout(START_S):
            for worker in await wait_idle(self.router.url):
                assert worker["state"] == "ready"
            async with self.router.client() as client:
                await wait_router(client, lambda view: view["router"]["inflight"] == 0)

    def close(self) -> None:
        """End the processes and check their exit status."""
        self.http.close()
        self.run(self._stack.aclose())
        self._runner.close()
