"""The prefill role: computing prompts for decode workers."""

import grpc

from baton.prefill_worker.embeddings import EmbeddingService
from baton.prefill_worker.service import PrefillService
from baton.protos import worker_pb2_grpc
from baton.worker.config import WorkerConfig
from baton.worker.request_trace import WorkerTracing
from baton.worker.role import WorkerCore
from baton.worker.server import serve_worker


class PrefillWorker:
    """The services of the prefill role."""

    def __init__(self, core: WorkerCore) -> None:
        self._service = PrefillService(
            core.host,
            core.channels,
            core.counters,
            core.drain,
            core.config.transfer_deadline_s,
            core.stores,
            WorkerTracing(core.config.worker_id, core.tracer),
        )
        self._embeddings = EmbeddingService(core.host, core.counters, core.drain)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the Prefill and Embeddings services to the server."""
        worker_pb2_grpc.add_PrefillServicer_to_server(self._service, server)
        worker_pb2_grpc.add_EmbeddingsServicer_to_server(self._embeddings, server)

    async def close(self) -> None:
        """End every call and prefix pull."""
        self._embeddings.close()
        await self._service.close()


async def run(config: WorkerConfig) -> None:
    """Serve until SIGTERM or SIGINT."""
    await serve_worker(config, {"prefill": PrefillWorker})
