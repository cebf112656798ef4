"""Commands to a decode worker over real gRPC, in messages of bounded size and with backpressure."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from baton.engine.errors import InvalidRequest
from baton.protos import common_pb2, worker_pb2, worker_pb2_grpc
from baton.router.errors import WorkerLost
from baton.router.workers import attach_stream
from baton.router.workers.attach_stream import AttachStream
from baton.rpc.grpc_options import CHANNEL_OPTIONS, MAX_MESSAGE_BYTES, SERVER_OPTIONS
from tests.unit.router.rigs.running_router import until

BIAS = dict.fromkeys(range(100000, 104096), 1.5)
MAX_TAKEN_BYTES = 2 << 20  # of a message, by the test's server


def command(number: int, **fields: Any) -> worker_pb2.GenerateCommand:
    """Return a command of 45 KB."""
    sampling = common_pb2.SamplingParams(logit_bias=BIAS)
    return worker_pb2.GenerateCommand(request_id=f"r{number}", sampling=sampling, **{"token_ids": [1, 2], **fields})


@dataclass
class Reader(worker_pb2_grpc.DecodeServicer):
    """A worker that records what it receives, and reads only while it may."""

    may_read: asyncio.Event = field(default_factory=asyncio.Event)
    messages: list[worker_pb2.RouterMessage] = field(default_factory=list)

    async def Attach(self, requests: Any, context: Any) -> AsyncIterator[worker_pb2.WorkerMessage]:  # noqa: N802
        yield worker_pb2.WorkerMessage()
        await self.may_read.wait()
        async for message in requests:
            self.messages.append(message)

    @property
    def ids(self) -> list[str]:
        return [each.request_id for message in self.messages for each in message.generate]


@asynccontextmanager
async def attached(reader: Reader) -> AsyncIterator[tuple[AttachStream, "asyncio.Task[None]"]]:
    """Run a stream to the worker; yields it and its task."""
    options = [(name, MAX_TAKEN_BYTES if "receive" in name else value) for name, value in SERVER_OPTIONS]
    server = grpc.aio.server(options=options)
    worker_pb2_grpc.add_DecodeServicer_to_server(reader, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stream = AttachStream("decode-0")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", CHANNEL_OPTIONS) as channel:
        running = asyncio.create_task(stream.run(channel, worker_pb2.Hello()))
        try:
            yield stream, running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await server.stop(None)


async def test_many_large_commands_break_no_stream() -> None:
    reader = Reader()
    async with attached(reader) as (stream, running):
        for number in range(100):
            stream.submit(command(number))
        for number in range(0, 100, 2):
            stream.abort(f"r{number}")
        reader.may_read.set()
        await until(lambda: len(reader.ids) == 100 or running.done())
        assert not running.done()
        assert reader.ids == [f"r{number}" for number in range(100)]  # 4.5 MB in the order that they came
        await until(lambda: sum(len(message.abort) for message in reader.messages) == 50)
        assert all(message.ByteSize() <= MAX_MESSAGE_BYTES for message in reader.messages)
        assert len(reader.messages) < 10  # the hello among them


async def test_a_worker_that_does_not_read_costs_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_stream, "MAX_UNSENT_BYTES", 2 << 20)
    reader, submitted = Reader(), 0

    async def submit(number: int) -> None:
        nonlocal submitted
        await stream.room()
        stream.submit(command(number))
        submitted += 1

    async with attached(reader) as (stream, running):
        tasks = [asyncio.create_task(submit(number)) for number in range(300)]
        await until(lambda: submitted > 40)
        for _ in range(50):  # whatever gRPC itself takes, it takes now
            await asyncio.sleep(0.001)
        assert submitted < 150
        reader.may_read.set()
        await until(lambda: len(reader.ids) == 300 or running.done())
        assert sorted(reader.ids) == sorted(f"r{number}" for number in range(300))
        await asyncio.gather(*tasks)


async def test_a_wait_for_room_fails_with_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_stream, "MAX_UNSENT_BYTES", 1)
    stream = AttachStream("decode-0")
    await stream.room()
    stream.submit(command(0))
    waiting = [asyncio.create_task(stream.room()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    stream.close(WorkerLost("gone"))
    for task in waiting:
        with pytest.raises(WorkerLost, match="gone"):
            await task


async def test_a_command_that_is_too_large_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach_stream, "MAX_COMMAND_BYTES", 100_000)
    reader = Reader()
    reader.may_read.set()
    async with attached(reader) as (stream, running):
        stream.submit(command(0))
        with pytest.raises(
            InvalidRequest, match=r"the prompt's 20000 tokens .* over the limit of 100000 for a request"
        ):
            stream.submit(command(1, token_ids=range(20_000)))
        stream.submit(command(2))
        await until(lambda: len(reader.ids) == 2 or running.done())
        assert reader.ids == ["r0", "r2"]
