"""A worker reads only from workers of its registry or its routers, for any address that a caller gives."""

import asyncio
import socket
from pathlib import Path

import grpc
import pytest

from baton.doctor.known_peers import KnownPeers, UnknownPeer
from baton.doctor.service import DoctorService
from baton.kvtransfer.base import PoolDescription
from baton.membership.registry.base import Member
from baton.membership.registry.factory import open_registry
from baton.protos import doctor_pb2, doctor_pb2_grpc
from baton.rpc.peers import Channels
from tests.redis_server import redis_server

PEER, STRANGER = "10.0.0.5:7000", "10.0.0.9:7000"
POOL = PoolDescription("life", "model", 1, 4096, {})


async def is_known(peers: KnownPeers, address: str) -> bool:
    try:
        await peers.check(address)
    except UnknownPeer:
        return False
    return True


async def test_without_a_registry_watching_routers_name_the_peers() -> None:
    peers = KnownPeers(None)
    assert not await is_known(peers, PEER)
    with peers.named([PEER]):
        with peers.named([PEER, "10.0.0.6:7000"]):
            assert await is_known(peers, "10.0.0.6:7000")
        assert await is_known(peers, PEER)
        assert not await is_known(peers, "10.0.0.6:7000")
        assert not await is_known(peers, STRANGER)
    assert not await is_known(peers, PEER)


async def test_with_a_registry_only_the_registry_names_the_peers(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server:
        await check_registered(server.url)


async def check_registered(url: str) -> None:
    peers, registry = KnownPeers(url), open_registry(url)
    member = Member(
        worker_id="prefill-0",
        incarnation="life",
        role="prefill",
        address=PEER,
        model="model",
        fingerprint="model",
        block_size=16,
        max_num_seqs=1,
    )
    keeping = asyncio.create_task(registry.lease(member, 10).keep())
    try:
        async with asyncio.timeout(20):
            while not await is_known(peers, PEER):
                await asyncio.sleep(0.01)
        with peers.named([STRANGER]), pytest.raises(UnknownPeer, match="has no worker at this address"):
            await peers.check(STRANGER)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await registry.close()


async def test_a_probe_of_a_stranger_connects_to_nothing() -> None:
    server, channels = grpc.aio.server(), Channels()
    doctor = DoctorService(POOL, 1, "127.0.0.1", "auto", channels, KnownPeers(None))
    doctor_pb2_grpc.add_DoctorServicer_to_server(doctor, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.setblocking(False)
        request = doctor_pb2.ProbeRequest(address=f"127.0.0.1:{stranger.getsockname()[1]}")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await doctor_pb2_grpc.DoctorStub(channel).Probe(request, timeout=30)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert "not a known peer" in (caught.value.details() or "")
        with pytest.raises(BlockingIOError):
            stranger.accept()
    await channels.close()
    await server.stop(None)
