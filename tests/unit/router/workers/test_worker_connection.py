"""Cancellation and loss of connections."""

import asyncio
from typing import Any

import pytest

from baton.membership.registry.memory import MemoryRegistry
from baton.router.errors import WorkerLost
from baton.router.workers.attach_stream import AttachStream
from tests.unit.router.rigs.pools import ready, running_pool
from tests.unit.router.rigs.running_router import until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker


@pytest.mark.parametrize("breaks", ["attach", "watch"])
async def test_a_connection_that_breaks_as_it_is_cancelled_ends(breaks: str, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, may_break, was_cancelled = ScriptedWorker(), asyncio.Event(), asyncio.Event()

    def connection() -> "asyncio.Task[Any]":
        (task,) = [each for each in asyncio.all_tasks() if each.get_name() == f"worker {worker.address}"]
        return task

    async def run(stream: AttachStream, channel: Any, hello: Any) -> None:
        """A stream during whose end the connection is cancelled once."""
        try:
            await may_break.wait()
        finally:
            if not was_cancelled.is_set():
                was_cancelled.set()
                may_break.clear()
                connection().cancel()
        raise WorkerLost("broken")

    monkeypatch.setattr(AttachStream, "run", run)
    await worker.start()
    async with running_pool(MemoryRegistry([worker.address])) as pool:
        await until(lambda: ready(pool) == {worker.address})
        task = connection()
        if breaks == "attach":
            may_break.set()
        else:
            await worker.stop()
        done, _ = await asyncio.wait((task,), timeout=5)
        assert was_cancelled.is_set()
        assert done
    await worker.stop()
