"""What a router that does nothing costs before Dynamo's workers: `python -m benchmarks.routing.dynamo_pass PORT`.

It runs in the peers' environment and calls the workers as its runtime's own client does, each in turn.
"""

import asyncio
import gc
import sys
from typing import Any

import orjson
import uvloop
from dynamo.runtime import DistributedRuntime  # type: ignore[import-not-found]  # in the peers' environment

from benchmarks.routing.pass_server import PassedRequest, serve_passing


class DynamoPass:
    """Owns the calls under way."""

    def __init__(self, client: Any) -> None:  # the runtime's, which has no types here
        self._client = client
        self._calls: set[asyncio.Task[None]] = set()

    def forward(self, request_id: bytes, message: bytes, request: PassedRequest) -> None:
        """Sends a message that is made."""
        call = asyncio.get_running_loop().create_task(self._call(message, request))
        self._calls.add(call)
        call.add_done_callback(self._calls.discard)

    async def _call(self, message: bytes, request: PassedRequest) -> None:
        async for answer in await self._client.round_robin(orjson.loads(message), annotated=False):
            request.news("finish_reason" in answer)


async def main(port: int) -> None:
    """Serves until it is ended."""
    runtime = DistributedRuntime(asyncio.get_running_loop(), "file", "tcp", event_plane="zmq", response_plane="tcp")
    client = await runtime.endpoint("bench.backend.generate").client()
    await client.wait_for_instances()
    gc.disable()
    await serve_passing(port, DynamoPass(client).forward)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
