"""Pass-through in front of Dynamo's workers: `python -m benchmarks.routing.passing.dynamo PORT`.

It runs in the peers' environment and calls the workers round-robin through the runtime's own client.
"""

import asyncio
import gc
import sys
from typing import Any

import orjson
import uvloop
from dynamo.runtime import DistributedRuntime  # type: ignore[import-not-found]  # in the peers' environment

from benchmarks.routing.passing.server import PassedRequest, serve_passing


class DynamoPass:
    """In-flight calls."""

    def __init__(self, client: Any) -> None:  # the runtime's, which has no types here
        self._client = client
        self._calls: set[asyncio.Task[None]] = set()

    def forward(self, request_id: bytes, message: bytes, request: PassedRequest) -> None:
        """Send a prepared message."""
        call = asyncio.get_running_loop().create_task(self._call(message, request))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, message: bytes, request: PassedRequest) -> None:
        async for answer in await self._client.round_robin(orjson.loads(message), annotated=False):
            request.on_output("finish_reason" in answer)


async def main(port: int) -> None:
    """Serve until terminated."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq", response_plane="tcp")
    client = await runtime.endpoint("bench.backend.generate").client()
    await client.wait_for_instances()
    gc.disable()
    await serve_passing(port, DynamoPass(client).forward)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
