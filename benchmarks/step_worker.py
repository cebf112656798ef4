"""Worker without a model for measuring routers: one token per request and step.

    python -m benchmarks.step_worker --step-ms 10

Prints its address; then, for each line on stdin, one JSON object with its time of each request since the last line.
"""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic

import click
import grpc
import orjson
import uvloop

from baton.protos import common_pb2, worker_pb2
from baton.protos.worker_pb2_grpc import DecodeServicer, WorkerServicer, add_DecodeServicer_to_server
from baton.protos.worker_pb2_grpc import add_WorkerServicer_to_server as add_worker
from baton.rpc.grpc_options import SERVER_OPTIONS

NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN = 1 << 16, 16, 1 << 17
FIRST_TOKEN, NUM_TOKENS = 300, 3000  # words and pieces of words of the bundled vocabulary
INCARNATION = "step-worker/1"


@dataclass(slots=True)
class RequestTimes:
    """Arrival and token times of a request, on the monotonic clock."""

    received_s: float
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass(slots=True)
class _Running:
    command: worker_pb2.GenerateCommand
    times: RequestTimes
    num_tokens: int = 0


@dataclass(slots=True)
class _Router:
    """Stream of one router."""

    running: dict[str, _Running] = field(default_factory=dict)
    work: asyncio.Event = field(default_factory=asyncio.Event)


class StepWorker(WorkerServicer, DecodeServicer):
    """Server for routers; owns the times of ended requests."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self.ended: dict[str, RequestTimes] = {}
        self._taken: list[int] = []  # commands that are not in a report yet

    async def Describe(  # noqa: N802
        self,
        request: worker_pb2.DescribeRequest,
        context: grpc.aio.ServicerContext[worker_pb2.DescribeRequest, worker_pb2.WorkerDescription],
    ) -> worker_pb2.WorkerDescription:
        """Describe a decode worker without limits."""
        return worker_pb2.WorkerDescription(
            worker_id="step-worker", incarnation=INCARNATION, role=worker_pb2.WORKER_ROLE_BOTH, model="any",
            fingerprint="step", block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, max_model_len=MAX_MODEL_LEN,
            max_num_seqs=4096,
        )  # fmt: skip

    async def Watch(  # noqa: N802
        self,
        request: worker_pb2.WatchRequest,
        context: grpc.aio.ServicerContext[worker_pb2.WatchRequest, worker_pb2.WorkerUpdate],
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """Send an empty cache, then load reports as often as a busy real worker."""
        update = self._update()
        update.cache.sequence = 0
        yield update
        while True:
            await asyncio.sleep(request.interval_ms / 1e3)
            if self._taken:
                yield self._update()

    async def Attach(  # noqa: N802
        self,
        request_iterator: AsyncIterator[worker_pb2.RouterMessage],
        context: grpc.aio.ServicerContext[worker_pb2.RouterMessage, worker_pb2.WorkerMessage],
    ) -> AsyncIterator[worker_pb2.WorkerMessage]:
        """Send one message per step."""
        router = _Router()
        reader = asyncio.create_task(self._read(request_iterator, router))
        try:
            while True:
                await router.work.wait()
                await asyncio.sleep(self._step_s - monotonic() % self._step_s)
                if router.running:
                    yield self._step(router, monotonic())
        finally:
            reader.cancel()

    def _update(self) -> worker_pb2.WorkerUpdate:
        update = worker_pb2.WorkerUpdate(incarnation=INCARNATION)
        load = update.load
        load.num_free_blocks = load.num_blocks = NUM_BLOCKS
        load.prefill_tokens_per_s, load.read_bytes_per_s = 20_000, 1e10
        load.decode_step_s, load.decode_sequence_s = self._step_s, 0.0001
        update.taken.numbers.extend(self._taken)
        self._taken = []
        return update

    async def _read(self, messages: AsyncIterator[worker_pb2.RouterMessage], router: _Router) -> None:
        async for message in messages:
            for command in message.generate:
                self._taken.append(command.number)
                router.running[command.request_id] = _Running(command, RequestTimes(monotonic()))
                router.work.set()
            for abort in message.abort:
                router.running.pop(abort.request_id, None)

    def _step(self, router: _Router, now_s: float) -> worker_pb2.WorkerMessage:
        message = worker_pb2.WorkerMessage()
        for request_id, request in list(router.running.items()):
            delta = message.deltas.add(request_id=request_id)
            delta.token_ids.append(FIRST_TOKEN + (len(request_id) + request.num_tokens * 37) % NUM_TOKENS)
            request.num_tokens += 1
            request.times.first_s = request.times.first_s or now_s
            ends = request.num_tokens >= request.command.sampling.max_tokens
            if ends or request.num_tokens == 1:
                delta.served_by.prefill_worker = delta.served_by.decode_worker = "step-worker"
            if ends:
                delta.finish_reason = common_pb2.FINISH_REASON_LENGTH
                request.times.last_s = now_s
                self.ended[request_id] = request.times
                del router.running[request_id]
        if not router.running:
            router.work.clear()
        return message


async def _serve(step_s: float) -> None:
    worker = StepWorker(step_s)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    add_worker(worker, server)
    add_DecodeServicer_to_server(worker, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    gc.disable()  # a collection would distort the router's times
    print(f"127.0.0.1:{port}", flush=True)
    try:
        while await asyncio.to_thread(sys.stdin.readline):
            ended, worker.ended = worker.ended, {}
            times = {key: (each.received_s, each.first_s, each.last_s) for key, each in ended.items()}
            print(orjson.dumps(times).decode(), flush=True)
    finally:
        await server.stop(None)


@click.command()
@click.option("--step-ms", type=float, default=10.0, show_default=True)
def main(step_ms: float) -> None:
    """Serve until stdin is closed."""
    uvloop.run(_serve(step_ms / 1e3))


if __name__ == "__main__":
    main()
