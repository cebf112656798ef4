"""Workers that only send prefix cache events, in a separate process."""

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

NUM_PREPARED = 64  # distinct messages of a worker, sent cyclically


@dataclass(frozen=True, slots=True)
class EventRate:
    """Rate of the sent events."""

    num_workers: int
    blocks_per_s: float  # stored plus removed, over all workers
    interval_s: float  # between two messages of a worker

    @property
    def blocks_per_message(self) -> int:
        """Blocks in a message, half of them stored and half removed."""
        return max(2, round(self.blocks_per_s * self.interval_s / self.num_workers / 2) * 2)


def prepared_updates(incarnation: str, blocks_per_message: int, rng: random.Random) -> list[worker_pb2.WorkerUpdate]:
    """Return messages that each store new blocks and remove those stored two messages earlier."""
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
    """Server that sends each watcher the messages of a different worker, at the rate."""

    def __init__(self, rate: EventRate) -> None:
        self._rate = rate
        self._num_watchers = 0

    async def Describe(  # noqa: N802
        self, request: worker_pb2.DescribeRequest, context: Context
    ) -> worker_pb2.WorkerDescription:
        """Describe an idle worker."""
        return worker_pb2.WorkerDescription(worker_id="source")

    async def Drain(  # noqa: N802
        self, request: worker_pb2.DrainRequest, context: Context
    ) -> worker_pb2.DrainResponse:
        """Return at once: there are no requests."""
        return worker_pb2.DrainResponse()

    async def Undrain(  # noqa: N802
        self, request: worker_pb2.UndrainRequest, context: Context
    ) -> worker_pb2.UndrainResponse:
        """Do nothing: it never drains."""
        return worker_pb2.UndrainResponse()

    async def Watch(  # noqa: N802
        self, request: worker_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[worker_pb2.WorkerUpdate]:
        """Send messages until the watcher disconnects; late messages are caught up."""
        number, self._num_watchers = self._num_watchers, self._num_watchers + 1
        updates = prepared_updates(f"source-{number}", self._rate.blocks_per_message, random.Random(number))
        clock = asyncio.get_running_loop().time
        started_at_s, num_sent = clock() + self._rate.interval_s * random.Random(number).random(), 0
        while True:
            await asyncio.sleep(started_at_s + num_sent * self._rate.interval_s - clock())
            yield updates[num_sent % NUM_PREPARED]
            num_sent += 1


def serve(rate: EventRate, ready: Connection) -> None:
    """Run the process: send the port through `ready`, and serve until terminated."""
    uvloop.run(_serve(rate, ready))


async def _serve(rate: EventRate, ready: Connection) -> None:
    server = grpc.aio.server(options=SERVER_OPTIONS)
    worker_pb2_grpc.add_WorkerServicer_to_server(EventSource(rate), server)
    ready.send(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await server.wait_for_termination()
