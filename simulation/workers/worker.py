"""One simulated worker: a simulated engine behind a real worker's gRPC services, on a port of its own."""

import uuid
from collections.abc import Iterator

import grpc

from baton.decode_worker.service import DecodeService
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.peers import Channels
from baton.settings.names import host_port
from baton.simulation.engine.clock import LoopClock
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.tokens import Tokens
from baton.simulation.workers.decode_requests import SimulatedDecodeRequests
from baton.simulation.workers.kv_source import SimulatedKVSourceService
from baton.simulation.workers.prefill_service import SimulatedPrefillService
from baton.simulation.workers.remote_prompt import TRANSPORT
from baton.simulation.workers.service import SimulatedWorkerService
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from baton.worker.drain import Drain
from baton.worker.reporting import WorkerCounters

ROLES = {
    "prefill": worker_pb2.WORKER_ROLE_PREFILL,
    "decode": worker_pb2.WORKER_ROLE_DECODE,
    "both": worker_pb2.WORKER_ROLE_BOTH,
}


class SimulatedWorker:
    """Owns an engine and a server; serves from `start` to `stop`, once."""

    def __init__(self, config: SimulatedWorkerConfig, channels: Channels) -> None:
        """`channels` to other workers may be shared by all workers of a process, and outlive them."""
        self.config = config
        self.core = EngineCore(config.spec, LoopClock(), Tokens(config.spec), config.time_scale)
        self.counters = WorkerCounters()
        self.drain = Drain()
        self._channels = channels
        self._server = grpc.aio.server(interceptors=[RefuseMalformed()], options=SERVER_OPTIONS)
        self.description = self._describe(self._server.add_insecure_port(host_port(config.host, config.port)))
        self._service = SimulatedWorkerService(self.core, self.counters, self.drain, self.description)
        self._services = list(self._register())

    @property
    def address(self) -> str:
        """Where it serves, host:port."""
        return self.description.address

    async def start(self) -> None:
        """Begins to serve."""
        await self._server.start()

    async def stop(self) -> None:
        """Ends at once, as a worker that dies: every call breaks."""
        await self._server.stop(None)
        for service in self._services:
            await service.close()
        self.core.close()

    def _describe(self, port: int) -> worker_pb2.WorkerDescription:
        config, spec = self.config, self.config.spec
        address, incarnation = host_port(config.host, port), uuid.uuid4().hex
        return worker_pb2.WorkerDescription(
            worker_id=config.worker_id,
            incarnation=incarnation,
            role=ROLES[config.role],
            address=address,
            model=config.model,
            fingerprint=config.fingerprint,
            block_size=spec.block_size,
            num_blocks=spec.num_blocks,
            max_model_len=self.core.max_model_len,
            pool=worker_pb2.KVPool(
                incarnation=incarnation,
                fingerprint=config.fingerprint,
                num_blocks=spec.num_blocks,
                block_bytes=spec.block_bytes,
                endpoints={TRANSPORT: address.encode()},
            ),
            transport=TRANSPORT,
            max_num_seqs=spec.max_num_seqs,
            max_num_batched_tokens=spec.max_num_batched_tokens,
        )

    def _register(self) -> Iterator[SimulatedPrefillService | SimulatedDecodeRequests]:
        """Adds the services to the server; yields the role's."""
        server, core, drain, description = self._server, self.core, self.drain, self.description
        worker_pb2_grpc.add_WorkerServicer_to_server(self._service, server)
        worker_pb2_grpc.add_KVSourceServicer_to_server(SimulatedKVSourceService(core, drain, description), server)
        if self.config.role != "decode":
            prefill = SimulatedPrefillService(core, self._channels, self.counters, drain, description)
            worker_pb2_grpc.add_PrefillServicer_to_server(prefill, server)
            yield prefill
        if self.config.role != "prefill":
            requests = SimulatedDecodeRequests(core, self._channels, self.counters, drain, description)
            worker_pb2_grpc.add_DecodeServicer_to_server(DecodeService(requests, description.incarnation), server)
            yield requests
