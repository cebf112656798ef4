"""A worker without a model whose embeddings are a function of an input's tokens."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import numpy as np

from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.peers import refuse
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

SIZE = 8


def vector_of(token_ids: Sequence[int]) -> list[float]:
    """Return the embedding of an input."""
    digest = hashlib.sha256(repr(list(token_ids)).encode()).digest()
    return [byte / 256 for byte in digest[:SIZE]]


class EmbeddingWorker(ScriptedWorker, worker_pb2_grpc.EmbeddingsServicer):
    """A prefill worker; its calls may be refused, stopped or broken off."""

    def __init__(self, worker_id: str = "prefill-0", role: int = worker_pb2.WORKER_ROLE_PREFILL) -> None:
        super().__init__(worker_id, role)
        self.calls: list[worker_pb2.EmbedRequest] = []
        self.refusals: list[grpc.StatusCode] = []  # of the next calls
        self.num_drained = 0  # next calls that it refuses as it drains
        self.max_results: int | None = None  # of a call, which then fails with `failure`; None: all
        self.failure = grpc.StatusCode.UNAVAILABLE
        self.size = SIZE
        self.may_embed = asyncio.Event()  # cleared: calls get keep-alives only
        self.may_embed.set()
        self.num_cancelled = 0

    def add_services(self, server: grpc.aio.Server) -> None:
        """Add the worker's services to a server."""
        super().add_services(server)
        worker_pb2_grpc.add_EmbeddingsServicer_to_server(self, server)

    async def Describe(self, request: Any, context: Any) -> worker_pb2.WorkerDescription:  # noqa: N802
        description = await super().Describe(request, context)
        description.pooling.CopyFrom(worker_pb2.Pooling(kind=worker_pb2.POOLING_KIND_LAST, size=SIZE))
        return description

    async def Embed(self, request: Any, context: Any) -> AsyncIterator[worker_pb2.EmbedEvent]:  # noqa: N802
        self.calls.append(request)
        if self.num_drained:
            self.num_drained -= 1
            await refuse(context, "draining")
        if self.refusals:
            await context.abort(self.refusals.pop(0), "refused")
        yield worker_pb2.EmbedEvent()
        try:
            await self.may_embed.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        for index, each in reversed(list(enumerate(request.inputs))):
            if self.max_results == 0:
                await context.abort(self.failure, "broken off")
            if self.max_results is not None:
                self.max_results -= 1
            vector = np.resize(np.array(vector_of(each.token_ids), "<f4"), self.size).tobytes()
            yield worker_pb2.EmbedEvent(embedding=worker_pb2.Embedding(index=index, vector=vector, num_cached_tokens=1))
