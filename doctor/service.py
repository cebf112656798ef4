"""The Doctor service of a worker, for `baton doctor`."""

import asyncio
import time

import grpc

from baton.doctor.known_peers import KnownPeers, UnknownPeer
from baton.doctor.link import Link
from baton.doctor.machine import examine_machine
from baton.doctor.messages import finding_to_proto, link_to_proto
from baton.doctor.packages import package_versions
from baton.doctor.probe import Reader, probe
from baton.kvtransfer.base import PoolDescription
from baton.kvtransfer.nixl.rdma import has_rdma_device
from baton.kvtransfer.threads import run_in_thread
from baton.protos import doctor_pb2, doctor_pb2_grpc, worker_pb2, worker_pb2_grpc
from baton.rpc.peers import MAX_WORD_CHARS, Channels, Context
from baton.rpc.pool_description import pool_from_proto

DESCRIBE_TIMEOUT_S = 5.0


class DoctorService(doctor_pb2_grpc.DoctorServicer):
    """The Doctor service: examines the worker's machine and its links from peers, one probe at a time."""

    def __init__(
        self, pool: PoolDescription, num_ranks: int, host: str, setting: str, channels: Channels, peers: KnownPeers
    ) -> None:
        """pool: of the first rank, equal in size to those of the `num_ranks` ranks; host: where transports listen;
        setting: the worker's transport setting; channels: to its peers.
        """
        self._pool = pool
        self._num_ranks = num_ranks
        self._reader = Reader(pool.fingerprint, pool.block_bytes, host)
        self._setting = setting
        self._channels = channels
        self._peers = peers
        self._probing: asyncio.Future[list[Link]] | None = None  # may outlive its call

    async def ReadClock(  # noqa: N802
        self, request: doctor_pb2.ReadClockRequest, context: Context
    ) -> doctor_pb2.ClockTime:
        """Return this machine's time."""
        return doctor_pb2.ClockTime(time_s=time.time())

    async def Examine(  # noqa: N802
        self, request: doctor_pb2.ExamineRequest, context: Context
    ) -> doctor_pb2.MachineReport:
        """Check the machine of this process and return the findings."""
        pool_bytes = self._num_ranks * self._pool.num_blocks * self._pool.block_bytes
        findings = await asyncio.to_thread(examine_machine, pool_bytes)
        return doctor_pb2.MachineReport(
            findings=[finding_to_proto(finding) for finding in findings],
            versions=await asyncio.to_thread(package_versions),
        )

    async def Probe(  # noqa: N802
        self, request: doctor_pb2.ProbeRequest, context: Context
    ) -> doctor_pb2.ProbeReport:
        """Measure reads from the owner's pool. A probe whose caller has given up still delays the next one."""
        try:
            await self._peers.check(request.address)
        except UnknownPeer as error:
            address = request.address[:MAX_WORD_CHARS]
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{address} is not a known peer: {error}")
        try:
            owner = await self._describe_pool(request.address)
        except grpc.aio.AioRpcError as error:
            reason = f"{request.address} does not respond: {error.code().name}: {error.details()}"
            failed = Link(self._setting, None, reason, is_same_host=False, has_rdma=has_rdma_device(), rates=None)
            return doctor_pb2.ProbeReport(links=[link_to_proto(failed)])
        links = await self._probe(owner)
        return doctor_pb2.ProbeReport(links=[link_to_proto(link) for link in links])

    async def _describe_pool(self, address: str) -> PoolDescription:
        """Ask the owner itself about its pool, so that the caller cannot choose where the transports connect."""
        stub = worker_pb2_grpc.WorkerStub(self._channels.get(address))
        description = await stub.Describe(worker_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_S)
        return pool_from_proto(description.pool)

    async def _probe(self, owner: PoolDescription) -> list[Link]:
        while self._probing is not None and not self._probing.done():
            await asyncio.wait([self._probing])
        probing = run_in_thread("baton-doctor-probe", lambda: probe(self._reader, owner, self._setting))
        self._probing = probing
        return await asyncio.shield(probing)
