"""A client that uses one decode worker as a router does."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from baton.engine.sampling.params import SamplingParams
from baton.engine.vision.image import Image
from baton.protos import common_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.requests import image_to_proto, sampling_to_proto
from tests.integration.worker_process import WorkerProcess


@dataclass(eq=False)
class Generation:
    """The deltas received for one request."""

    request_id: str
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[common_pb2.PositionLogprobs] = field(default_factory=list)
    prompt_logprobs: list[common_pb2.PositionLogprobs] = field(default_factory=list)
    finish_reason: int = common_pb2.FINISH_REASON_UNSPECIFIED
    error: common_pb2.RequestError | None = None
    served_by: common_pb2.ServedBy = field(default_factory=common_pb2.ServedBy)
    served_by_so_far: common_pb2.ServedBy = field(default_factory=common_pb2.ServedBy)  # as of the last delta but one
    progressed: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, delta: worker_pb2.RequestDelta) -> None:
        """Add a delta."""
        assert not self.ended.is_set(), "a delta after the end"
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.prompt_logprobs += delta.prompt_logprobs
        if delta.HasField("served_by"):
            self.served_by = delta.served_by
            if not delta.finish_reason:
                self.served_by_so_far = delta.served_by
        if delta.HasField("error"):
            self.error = delta.error
        self.finish_reason = delta.finish_reason
        self.progressed.set()
        if delta.finish_reason:
            self.ended.set()


class DecodeClient:
    """An attached stream."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._worker = worker
        self._call = worker_pb2_grpc.DecodeStub(worker.channel).Attach()
        self._generations: dict[str, Generation] = {}
        self._numbers = itertools.count()
        self._writing = asyncio.Lock()  # gRPC permits one write at a time per stream

    async def attach(self, incarnation: str) -> None:
        """Send the hello."""
        hello = worker_pb2.Hello(router_id="test", incarnation=incarnation)
        await self._write(worker_pb2.RouterMessage(hello=hello))

    async def read(self) -> None:
        """Receive deltas until the stream ends."""
        async for message in self._call:
            for delta in message.deltas:
                if delta.request_id in self._generations:
                    self._generations[delta.request_id].take(delta)

    async def submit(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        prefill: worker_pb2.PeerWorker | None = None,
        prefix_source: worker_pb2.PeerWorker | None = None,
        num_prompt_tokens: int | None = None,
        cache_salt: str = "",
        fallbacks: Sequence[worker_pb2.PeerWorker] = (),
        images: Sequence[Image] = (),
        adapter: worker_pb2.Adapter | None = None,
    ) -> Generation:
        """Send a request."""
        generation = Generation(f"r{next(self._numbers)}")
        self._generations[generation.request_id] = generation
        command = worker_pb2.GenerateCommand(
            request_id=generation.request_id,
            token_ids=prompt,
            num_prompt_tokens=num_prompt_tokens or len(prompt),
            sampling=sampling_to_proto(sampling),
            cache_salt=cache_salt,
            prefill=prefill,
            prefix_source=prefix_source,
            prefill_fallbacks=fallbacks,
            images=map(image_to_proto, images),
            adapter=adapter.name if adapter is not None else "",
            adapter_digest=adapter.digest if adapter is not None else "",
        )
        await self._write(worker_pb2.RouterMessage(generate=[command]))
        return generation

    async def abort(self, generation: Generation) -> None:
        """Cancel a request; its further deltas are not sent."""
        del self._generations[generation.request_id]
        command = worker_pb2.AbortCommand(request_id=generation.request_id)
        await self._write(worker_pb2.RouterMessage(abort=[command]))

    async def generate(
        self, prompt: list[int], sampling: SamplingParams, prefill: worker_pb2.PeerWorker | None = None
    ) -> Generation:
        """Send a request and wait for its end."""
        generation = await self.submit(prompt, sampling, prefill)
        await generation.ended.wait()
        return generation

    async def _write(self, message: worker_pb2.RouterMessage) -> None:
        async with self._writing:
            await self._call.write(message)

    def close(self) -> None:
        """Close the stream, which cancels its requests."""
        self._call.cancel()


@asynccontextmanager
async def decode_client(worker: WorkerProcess) -> AsyncIterator[DecodeClient]:
    """Attach a client to the worker."""
    client = DecodeClient(worker)
    await client.attach((await worker.describe()).incarnation)
    reading = asyncio.create_task(client.read())
    try:
        yield client
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        client.close()
