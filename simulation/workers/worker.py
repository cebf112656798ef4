"""A simulated worker: the services of a real worker on a simulated engine."""

import math
import uuid
from collections.abc import Iterator

import grpc

from baton.decode_worker.handover import HandoverLimits
from baton.decode_worker.requests import DecodeRequests
from baton.decode_worker.service import DecodeService
from baton.doctor.known_peers import KnownPeers
from baton.prefill_worker.service import PrefillService
from baton.protos import worker_pb2, worker_pb2_grpc
from baton.rpc.grpc_options import SERVER_OPTIONS
from baton.rpc.malformed import RefuseMalformed
from baton.rpc.peers import Channels
from baton.settings.names import host_port
from baton.simulation.engine.clock import LoopClock
from baton.simulation.engine.core import EngineCore
from baton.simulation.engine.tokens import Tokens
from baton.simulation.workers.host import SimulatedHost
from baton.simulation.workers.kv_pool import TRANSPORT
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from baton.worker.drain import Drain
from baton.worker.kv.cache_control import KVCacheService
from baton.worker.kv.source import KVSourceService
from baton.worker.reporting import WorkerCounters
from baton.worker.service import WorkerService

# Defaults of a real worker.
TRANSFER_DEADLINE_S = 30.0
HANDOVER_TIMEOUT_S = 600.0
ORPHAN_TIMEOUT_S = 10.0
DRAIN_TIMEOUT_S = 30.0
MAX_PINNED_FRACTION = 0.25
ROLES = {
    "prefill": worker_pb2.WORKER_ROLE_PREFILL,
    "decode": worker_pb2.WORKER_ROLE_DECODE,
    "both": worker_pb2.WORKER_ROLE_BOTH,
}


class SimulatedWorker:
    """An engine and a server on its own port, which serves once, from `start` to `stop`."""

    def __init__(self, config: SimulatedWorkerConfig, channels: Channels, peers: KnownPeers) -> None:
        """`channels` and `peers` may be shared by all workers of a process, and outlive them."""
        self.config = config
        self.core = EngineCore(config.spec, LoopClock(), Tokens(config.spec), config.time_scale)
        self.counters = WorkerCounters()
        self.drain = Drain()
        self._channels = channels
        self._server = grpc.aio.server(interceptors=[RefuseMalformed()], options=SERVER_OPTIONS)
        self.description = self._describe(self._server.add_insecure_port(host_port(config.host, config.port)))
        self._host = SimulatedHost(self.core, self.description.pool)
        self._register_common(peers)
        self._services = list(self._register_role())

    @property
    def address(self) -> str:
        """The worker's host:port."""
        return self.description.address

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def stop(self) -> None:
        """End at once and break every call, like a worker that dies."""
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

    def _register_common(self, peers: KnownPeers) -> None:
        """Add the services of every role. An idle worker sends no reports, so that thousands of them cost nothing."""
        service = WorkerService(
            self._host, self.counters, self.drain, lambda: self.description, dict, DRAIN_TIMEOUT_S, peers, math.inf
        )
        worker_pb2_grpc.add_WorkerServicer_to_server(service, self._server)
        worker_pb2_grpc.add_KVSourceServicer_to_server(KVSourceService(self._host, self.drain), self._server)
        cache = KVCacheService(self._host, MAX_PINNED_FRACTION, service.note_news)
        worker_pb2_grpc.add_KVCacheServicer_to_server(cache, self._server)

    def _register_role(self) -> Iterator[DecodeRequests | PrefillService]:
        """Add the services of the worker's role, and yield what to close at the end, in order."""
        role, common = self.config.role, (self._host, self._channels, self.counters, self.drain)
        if role != "prefill":
            requests = DecodeRequests(
                *common,
                self.config.worker_id,
                HandoverLimits(TRANSFER_DEADLINE_S, HANDOVER_TIMEOUT_S),
                takes_handovers=role != "both",
                orphan_timeout_s=ORPHAN_TIMEOUT_S,
            )
            service = DecodeService(requests, self.description.incarnation)
            worker_pb2_grpc.add_DecodeServicer_to_server(service, self._server)
            yield requests
        if role != "decode":
            prefill = PrefillService(*common, TRANSFER_DEADLINE_S)
            worker_pb2_grpc.add_PrefillServicer_to_server(prefill, self._server)
            yield prefill
