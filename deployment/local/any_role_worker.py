"""The worker of any role, which can change it: a prefill worker, a decode worker, or both on one engine."""

import grpc

from baton.decode_worker.worker import DecodeWorker
from baton.prefill_worker.worker import PrefillWorker
from baton.worker.config import WorkerConfig
from baton.worker.role import RoleBuilders, WorkerCore
from baton.worker.server import serve_worker


class BothWorker:
    """Owner of a prefill and a decode worker whose requests share the engine's batch and blocks.

    There is no circular wait: a decode worker that waits for a prompt prefilled here holds blocks elsewhere, and
    requests that decode here wait for no other worker, because they are not handed over.
    """

    def __init__(self, core: WorkerCore) -> None:
        self._services = (PrefillWorker(core), DecodeWorker(core))

    def register(self, server: grpc.aio.Server) -> None:
        """Add the services of both roles to the server."""
        for services in self._services:
            services.register(server)

    async def close(self) -> None:
        """Abort the remaining requests."""
        prefill, decode = self._services
        try:
            await decode.close()  # first: the blocks that it frees may let a waiting prefill start
        finally:
            await prefill.close()


BUILDERS: RoleBuilders = {"prefill": PrefillWorker, "decode": DecodeWorker, "both": BothWorker}


async def run(config: WorkerConfig) -> None:
    """Serve until SIGTERM or SIGINT, first with the role of `config`."""
    await serve_worker(config, BUILDERS)
