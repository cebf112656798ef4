"""A worker of both roles: the services of a prefill worker and of a decode worker, on one engine."""

import grpc

from baton.decode_worker.worker import DecodeWorker
from baton.prefill_worker.worker import PrefillWorker
from baton.settings.worker_config import WorkerConfig
from baton.worker.server import WorkerCore, serve_worker


class BothWorker:
    """Owns both; their requests share the engine's batch and blocks.

    Nobody waits in a circle: who waits for a prompt that is computed here holds blocks elsewhere, and what decodes here
    waits for nobody, since it takes no handovers.
    """

    def __init__(self, core: WorkerCore) -> None:
        self._services = (PrefillWorker(core), DecodeWorker(core))

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the services of both roles to the server."""
        for services in self._services:
            services.register(server)

    async def close(self) -> None:
        """Aborts what is left."""
        prefill, decode = self._services
        try:
            await decode.close()  # first: blocks that it frees may let a prompt begin
        finally:
            await prefill.close()


async def run(config: WorkerConfig) -> None:
    """Serves until SIGTERM or SIGINT."""
    await serve_worker(config, BothWorker)
