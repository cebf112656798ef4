"""The decode role: decoding, and prefill of prompts whose plan names no prefill worker."""

import grpc

from baton.decode_worker.handover import HandoverLimits
from baton.decode_worker.requests import DecodeRequests
from baton.decode_worker.service import DecodeService
from baton.protos import worker_pb2_grpc
from baton.worker.config import WorkerConfig
from baton.worker.role import WorkerCore
from baton.worker.server import serve_worker


class DecodeWorker:
    """The services of the decode role."""

    def __init__(self, core: WorkerCore) -> None:
        self._requests = DecodeRequests(
            core.host,
            core.channels,
            core.counters,
            core.drain,
            core.config.worker_id,
            HandoverLimits(core.config.transfer_deadline_s, core.config.handover_timeout_s),
            takes_handovers=core.config.role != "both",
            orphan_timeout_s=core.config.orphan_timeout_s,
            stores=core.stores,
            tracer=core.tracer,
        )
        self._service = DecodeService(self._requests, core.host.identity.incarnation)

    def register(self, server: grpc.aio.Server) -> None:
        """Add the Decode service to the server."""
        worker_pb2_grpc.add_DecodeServicer_to_server(self._service, server)

    async def close(self) -> None:
        """Abort the requests that are left."""
        await self._requests.close()


async def run(config: WorkerConfig) -> None:
    """Serve until SIGTERM or SIGINT."""
    await serve_worker(config, {"decode": DecodeWorker})
