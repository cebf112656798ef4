"""What NIXL says of memory that it cannot read by itself; the GPUs' part of it, as far as it goes without one."""

import uuid
from concurrent.futures import Future
from dataclasses import replace

import pytest
import torch

from kvtransfer import endpoint
from kvtransfer.base import PoolIdentity
from kvtransfer.errors import TransportUnavailable
from kvtransfer.gpu_memory import MemoryPlace, has_ucx_cuda
from kvtransfer.nixl import NAME, Endpoint, NixlTransport
from kvtransfer.nixl_agent import NixlAgent
from kvtransfer.nixl_read import Region
from tests.unit.kvtransfer.kv_peers import HOST, ProcessPeer
from tests.unit.kvtransfer.read_rig import PATIENCE_S, SHAPE

VRAM = MemoryPlace("VRAM", 0)


def reader(tries_at_rest: bool, one_sided_only: bool = True) -> NixlTransport:
    """Ours, with a pool in host memory."""
    identity = PoolIdentity(uuid.uuid4().hex, "model")
    transport = NixlTransport(
        identity, HOST, connect_deadline_s=10.0, one_sided_only=one_sided_only, tries_at_rest=tries_at_rest
    )
    transport.register_pool(torch.zeros(SHAPE, dtype=torch.int64))
    return transport


async def test_reads_that_need_no_help_are_told_by_a_peer_at_rest() -> None:
    peer = await ProcessPeer.start("nixl", PoolIdentity(uuid.uuid4().hex, "model"), SHAPE, 1)
    transport = reader(tries_at_rest=True)
    try:
        found = await transport.connect(peer.description)
        assert transport.choices[found].reason == "memory to memory on one host, by devices alone"
        await transport.read(found, [1], [2], PATIENCE_S)
    finally:
        await transport.close()
        peer.kill()


@pytest.mark.parametrize("one_sided_only", [True, False])
async def test_what_ucx_stages_is_refused_or_named(one_sided_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
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


async def test_pools_in_other_kinds_of_memory_are_not_read_over_nixl() -> None:
    peer = await ProcessPeer.start("nixl", PoolIdentity(uuid.uuid4().hex, "model"), SHAPE, 1)
    transport = reader(tries_at_rest=False)
    try:
        address = replace(endpoint.decode(Endpoint, peer.description, NAME), memory="VRAM", device=3)
        described = replace(peer.description, endpoints={NAME: endpoint.encode(address)})
        with pytest.raises(TransportUnavailable, match="is in GPU memory, ours in host memory"):
            await transport.connect(described)
    finally:
        await transport.close()
        peer.kill()


@pytest.mark.skipif(torch.cuda.is_available(), reason="UCX has its CUDA support here")
def test_gpu_memory_is_not_registered_where_ucx_does_not_know_it(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, memory = NixlAgent(uuid.uuid4().hex), torch.zeros(4096, dtype=torch.uint8)

    def register() -> "Future[None]":
        return agent.call(lambda: agent.register(memory, VRAM))

    try:
        assert not has_ucx_cuda()
        with pytest.raises(TransportUnavailable, match=r"has not loaded its CUDA support.*libcuda"):
            register().result()
        # As if the module were there: then it is UCX itself that does not take it for a GPU's.
        monkeypatch.setattr("kvtransfer.nixl_agent.has_ucx_cuda", lambda: True)
        monkeypatch.setattr("kvtransfer.nixl_agent.bind_thread", lambda device: None)
        with pytest.raises(TransportUnavailable, match="cannot register GPU memory"):
            register().result()
    finally:
        agent.close()


def test_descriptors_name_the_device() -> None:
    assert Region(4096, 512, 7, MemoryPlace("VRAM", 3)).rows().tolist() == [[4096, 512, 3, 512, 7]]
    assert Region(4096, 512, 7).rows().tolist() == [[4096, 512, 0, 512, 7]]
    assert MemoryPlace.of(torch.zeros(1)) == MemoryPlace("DRAM", 0)
