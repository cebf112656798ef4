"""Workers that do nothing but tell of their prefix caches, in a process of their own."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import grpc
import uvloop

from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.peers import Context

NUM_PREPARED = 64  # different messages of a worker; they go round


@dataclass(frozen=True, slots=True)
class EventRate:
    """What the sources send."""

    num_workers: int
    blocks_per_s: float  # stored and removed, of all workers together
    interval_s: float  # between two messages of a worker

    @property
    def blocks_per_message(self) -> int:
        """Half of them stored, half of them removed."""
        return max(2, round(self.blocks_per_s * self.interval_s / self.num_workers / 2) * 2)


def prepared_updates(incarnation: str, blocks_per_message: int, rng: random.Random) -> list[worker_pb2.WorkerUpdate]:
    """Messages of which each stores new blocks and removes what the one before the last stored."""
    parts = [rng.randbytes(16 * (blocks_per_message // 2)) for _ in range(NUM_PREPARED)]
    return [
        worker_pb2.WorkerUpdate(
            incarnation=incarnation,
            load=worker_pb2.WorkerLoad(num_running=8, num_queued_tokens=4096, num_free_blocks=1000, step_s=0.02),
            cache=worker_pb2.CacheEvents(sequence=1, stored=part, removed=parts[place - 2]),
        )
        for place, part in enumerate(parts)
    ]


class EventSource(worker_pb2_grpc.WorkerServicer):
    """Sends each watcher another worker's messages, at the rate."""

    def __init__(self, rate: EventRate) -> None:
        self._rate = rate
        self._num_watchers = 0

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.WorkerDescription:
        """A worker that runs nothing."""
        return worker_pb2.WorkerDescription(worker_id="source")

    async def Drain(  # noqa: N802
        self, request: worker_pb2.DrainRequest, context: Context
    ) -> worker_pb2.DrainResponse:
        """It has no requests to wait for."""
        return worker_pb2.DrainResponse()

    async def Undrain(  # noqa: N802
        self, request: worker_pb2.UndrainRequest, context: Context
    ) -> worker_pb2.UndrainResponse:
        """It never stops."""
        return worker_pb2.UndrainResponse()

    async def Watch(  # noqa: N802
        self, request: worker_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """Until the watcher goes; messages that are late are made up for."""
        number, self._num_watchers = self._num_watchers, self._num_watchers + 1
        updates = prepared_updates(f"source-{number}", self._rate.blocks_per_message, random.Random(number))
        clock = asyncio.get_running_loop().time
        started_at_s, num_sent = clock() + self._rate.interval_s * random.Random(number).random(), 0
        while True:
            await asyncio.sleep(started_at_s + num_sent * self._rate.interval_s - clock())
            yield updates[num_sent % NUM_PREPARED]
            num_sent += 1


def serve(rate: EventRate, ready: Connection) -> None:
    """Entry of the process: tells its port, and serves until it is ended."""
    uvloop.run(_serve(rate, ready))


async def _serve(rate: EventRate, ready: Connection) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    worker_pb2_grpc.add_WorkerServicer_to_server(EventSource(rate), server)
    ready.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()
