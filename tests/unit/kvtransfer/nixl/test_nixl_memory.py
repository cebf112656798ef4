"""NIXL and memory that it cannot read one-sidedly; the parts for GPUs that can be tested without one."""

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import torch

from baton.kvtransfer import endpoint
from baton.kvtransfer.base import PoolDescription, PoolIdentity
from baton.kvtransfer.errors import PeerRefused, TransportUnavailable
from baton.kvtransfer.nixl import agent as nixl_agent
from baton.kvtransfer.nixl import one_sided_probe
from baton.kvtransfer.nixl.agent import NixlAgent
from baton.kvtransfer.nixl.connection import NixlConnection
from baton.kvtransfer.nixl.gpu_memory import MemoryPlace, gpu_number, has_ucx_cuda
from baton.kvtransfer.nixl.read import Region
from baton.kvtransfer.nixl.transport import NAME, Endpoint, NixlBackend
from baton.kvtransfer.transport import Transport
from tests.marks import slow_case
from tests.unit.kvtransfer.kv_peers import HOST, ProcessPeer
from tests.unit.kvtransfer.read_rig import PATIENCE_S, SHAPE

VRAM = MemoryPlace("VRAM", 0)
GPU_READS = "UCX_CUDA_IPC_ENABLE_GET_ZCOPY"


def reader(probe_while_idle: bool, one_sided_only: bool = True, connect_deadline_s: float = PATIENCE_S) -> Transport:
    """Create a transport with a pool in host memory."""
    identity = PoolIdentity(uuid.uuid4().hex, "model")
    transport = Transport(
        identity, [NixlBackend(identity.incarnation, HOST, 0, connect_deadline_s, one_sided_only, probe_while_idle)]
    )
    transport.register_pool(torch.zeros(SHAPE, dtype=torch.int64))
    return transport


async def test_one_sided_reads_are_detected_while_the_peer_is_idle() -> None:
    peer = await ProcessPeer.start("nixl", PoolIdentity(uuid.uuid4().hex, "model"), SHAPE, 1)
    transport = reader(probe_while_idle=True)
    try:
        found = await transport.connect(peer.description)
        assert transport.choices[found].reason == "memory to memory on one host, by devices alone"
        await transport.read(found, [1], [2], PATIENCE_S)
    finally:
        await transport.close()
        peer.kill()


@pytest.mark.parametrize("one_sided_only", [True, slow_case(False)])
async def test_reads_staged_by_ucx_are_refused_or_named(one_sided_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")
    peer = await ProcessPeer.start("nixl_emulated", PoolIdentity(uuid.uuid4().hex, "model"), SHAPE, 1)
    transport = reader(True, one_sided_only)
    try:
        if one_sided_only:
            with pytest.raises(TransportUnavailable, match=r"stages it through host memory: there is no cuda_ipc"):
                await transport.connect(peer.description)
            address = endpoint.decode(Endpoint, peer.description, NAME)
            elsewhere = replace(address, boot="another kernel")
            with pytest.raises(TransportUnavailable, match="no GPUDirect RDMA"):
                await transport.connect(replace(peer.description, endpoints={NAME: endpoint.encode(elsewhere)}))
            assert not transport.choices
        else:
            found = await transport.connect(peer.description)
            assert transport.choices[found].reason == "staged through host memory by UCX"
    finally:
        await transport.close()
        peer.kill()


async def test_pools_in_different_kinds_of_memory_are_not_read_over_nixl() -> None:
    peer = await ProcessPeer.start("nixl", PoolIdentity(uuid.uuid4().hex, "model"), SHAPE, 1)
    transport = reader(probe_while_idle=False)
    try:
        address = replace(endpoint.decode(Endpoint, peer.description, NAME), memory="VRAM", device=3)
        described = replace(peer.description, endpoints={NAME: endpoint.encode(address)})
        with pytest.raises(TransportUnavailable, match="is in GPU memory, ours in host memory"):
            await transport.connect(described)
    finally:
        await transport.close()
        peer.kill()


@pytest.mark.skipif(torch.cuda.is_available(), reason="UCX has its CUDA support here")
def test_gpu_memory_is_not_registered_if_ucx_does_not_support_it(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, memory = NixlAgent(uuid.uuid4().hex), torch.zeros(4096, dtype=torch.uint8)

    def register() -> "Future[None]":
        return agent.call(lambda: agent.register(memory, VRAM))

    try:
        assert not has_ucx_cuda()
        with pytest.raises(TransportUnavailable, match=r"has not loaded its CUDA support.*libcuda"):
            register().result()
        # With the module check bypassed, UCX itself rejects host memory as GPU memory.
        monkeypatch.setattr("baton.kvtransfer.nixl.agent.has_ucx_cuda", lambda: True)
        monkeypatch.setattr("baton.kvtransfer.nixl.agent.bind_thread", lambda device: None)
        with pytest.raises(TransportUnavailable, match="cannot register GPU memory"):
            register().result()
    finally:
        agent.close()


def test_descriptors_name_the_device() -> None:
    assert Region(4096, 512, 7, MemoryPlace("VRAM", 3)).rows().tolist() == [[4096, 512, 3, 512, 7]]
    assert Region(4096, 512, 7).rows().tolist() == [[4096, 512, 0, 512, 7]]
    assert MemoryPlace.of(torch.zeros(1)) == MemoryPlace("DRAM", 0)


@asynccontextmanager
async def owner() -> AsyncIterator[tuple[NixlBackend, PoolDescription]]:
    """Run a peer in this process, so that the test can make it poll."""
    identity = PoolIdentity(uuid.uuid4().hex, "model")
    backend = NixlBackend(identity.incarnation, HOST)
    transport = Transport(identity, [backend])
    try:
        yield backend, transport.register_pool(torch.ones(SHAPE, dtype=torch.int64))
    finally:
        await transport.close()


@pytest.mark.slow
async def test_a_probe_of_a_peer_that_always_polls_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCX_TLS", "tcp")  # every read needs the peer's help, which its polling hides
    async with owner() as (theirs, description):
        theirs._agent.poll_for_peer(1)
        transport = reader(True, connect_deadline_s=2.0)
        with pytest.raises(TransportUnavailable, match=r"NIXL's probe of peer .* did not end within 1.6 s"):
            await transport.connect(description)
        await transport.close()


async def test_a_probe_of_a_peer_that_polls_in_every_round_is_inconclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    async with owner() as (theirs, description):
        real = NixlConnection.num_polls_when_idle

        async def polls_once_more(self: NixlConnection) -> int:
            theirs._agent.poll_for_peer(1)
            theirs._agent.poll_for_peer(-1)
            return await real(self)

        monkeypatch.setattr(NixlConnection, "num_polls_when_idle", polls_once_more)
        monkeypatch.setattr(one_sided_probe, "MAX_HELPED_ROUNDS", 6)  # on a busy machine reads seem to need help
        transport = reader(True, connect_deadline_s=2 * PATIENCE_S)
        try:
            with pytest.raises(TransportUnavailable, match="polled for other peers in each of 5 probes"):
                await transport.connect(description)
        finally:
            await transport.close()  # a socket that is left open fails later tests


async def test_a_probe_waits_until_the_peer_is_idle() -> None:
    async with owner() as (theirs, description):
        theirs._agent.poll_for_peer(1)
        transport = reader(True)
        connecting = asyncio.create_task(transport.connect(description))
        done, _ = await asyncio.wait({connecting}, timeout=0.5)
        assert not done
        theirs._agent.poll_for_peer(-1)
        peer = await connecting
        assert transport.choices[peer].reason == "memory to memory on one host, by devices alone"
        await transport.read(peer, [1], [2], PATIENCE_S)
        await transport.close()


def test_an_agent_reports_its_polls_once_idle() -> None:
    agent, reports = NixlAgent(uuid.uuid4().hex), []

    def polls() -> int:
        count: Future[int] = Future()
        agent.report_polls_when_idle(count.set_result)
        return count.result(PATIENCE_S)

    try:
        before = polls()
        assert polls() == before
        agent.poll_for_peer(1)
        agent.report_polls_when_idle(reports.append)
        agent.call(lambda: None).result()
        assert not reports
        agent.poll_for_peer(-1)
        assert polls() > before
        assert len(reports) == 1
    finally:
        agent.close()


@pytest.mark.parametrize("device", [-1, 1 << 10, 1 << 70])
async def test_an_impossible_device_is_refused(device: int) -> None:
    async with owner() as (_, description):
        address = replace(endpoint.decode(Endpoint, description, NAME), device=device)
        transport = reader(probe_while_idle=False)
        with pytest.raises(PeerRefused, match=f"claims that its pool is on device {device}"):
            await transport.connect(replace(description, endpoints={NAME: endpoint.encode(address)}))
        assert not transport.choices
        await transport.close()


def test_the_agents_thread_binds_its_gpu_before_nixl_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []
    create = nixl_agent.create_agent
    monkeypatch.setenv(GPU_READS, "")  # restored afterwards

    def note_and_create(name: str, *, reads_gpu: bool) -> object:
        order.append("created")
        monkeypatch.delenv(GPU_READS, raising=False)
        agent = create(name, reads_gpu=reads_gpu)
        order.append(os.environ.get(GPU_READS))
        return agent

    monkeypatch.setattr(nixl_agent, "bind_thread", order.append)
    monkeypatch.setattr(nixl_agent, "create_agent", note_and_create)
    NixlAgent(uuid.uuid4().hex, gpu=3).close()
    assert order == [3, "created", "on"]
    NixlAgent(uuid.uuid4().hex).close()
    assert order == [3, "created", "on", "created", None]


def test_gpu_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_number(torch.device("cpu")) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_number(torch.device("cuda", 2)) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 5)
    assert gpu_number(torch.device("cuda", 2)) == 2
    assert gpu_number(torch.device("cuda")) == 5
