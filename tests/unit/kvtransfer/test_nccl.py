"""Two-sided reads, over gloo: what the conformance suite does not ask of every transport."""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
import pytest
import torch

from kvtransfer import endpoint, nccl
from kvtransfer.base import PoolIdentity
from kvtransfer.errors import PeerLost, TransferDeadline, TransportUnavailable
from kvtransfer.nccl import CHUNK_BYTES, Endpoint, PairTransport
from kvtransfer.pair_group import PairGroup
from kvtransfer.tcp_connection import open_connection
from tests.unit.kvtransfer.kv_peers import CHUNK_TIMEOUT_S, HOST, fill, holds
from tests.unit.kvtransfer.read_rig import LARGE_SHAPE, PATIENCE_S, UNTOUCHED, soon


class Side:
    """A pool in host memory, read over gloo."""

    def __init__(self, seed: int) -> None:
        identity = PoolIdentity(uuid.uuid4().hex, "model")
        self.pool = torch.full(LARGE_SHAPE, UNTOUCHED)
        if seed:
            fill(self.pool, seed)
        self.transport = PairTransport(identity, HOST, backend="gloo", chunk_timeout_s=CHUNK_TIMEOUT_S)
        self.description = self.transport.register_pool(self.pool)


@asynccontextmanager
async def sides() -> AsyncIterator[tuple[Side, Side]]:
    both = Side(0), Side(1)
    try:
        yield both
    finally:
        for side in both:
            await side.transport.close()


async def test_a_read_that_was_given_up_leaves_the_communicator_to_the_next() -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        blocks = list(range(64))
        for _ in range(5):
            begun = threading.Event()
            reading = asyncio.create_task(
                ours.transport.read(peer, blocks, blocks, PATIENCE_S, lambda _, begun=begun: begun.set())
            )
            assert await asyncio.to_thread(begun.wait, PATIENCE_S)
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            await soon(ours.transport.quarantine.wait_clear(blocks))
            ours.pool.fill_(UNTOUCHED)
            assert peer in ours.transport.choices  # it is the same connection
            # What the first had asked for and did not want is not taken for what this one asks for.
            await ours.transport.read(peer, [63, 62, 61], [0, 1, 2], PATIENCE_S)
            assert all(holds(ours.pool, block, 1, 63 - block) for block in range(3))
            assert bool((ours.pool[3:] == UNTOUCHED).all())


async def test_reads_from_one_peer_wait_for_each_other_no_longer_than_their_deadlines() -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        line = ours.transport._connections.get(peer).line
        await line.acquire()
        with pytest.raises(TransferDeadline, match="reads to answer that were before"):
            await ours.transport.read(peer, [0], [0], 0.05)
        waiting = asyncio.create_task(ours.transport.read(peer, [0], [0], PATIENCE_S))
        await asyncio.sleep(0)
        ours.transport.forget(peer)
        line.release()
        with pytest.raises(PeerLost, match="forgotten"):
            await waiting


async def test_two_gpus_without_a_communicator_are_for_another_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sides() as (ours, theirs):

        def refuse(*_args: object) -> PairGroup:
            raise RuntimeError("ncclInvalidUsage: Duplicate GPU detected\nC++ frames")

        with monkeypatch.context() as patched:
            patched.setattr(nccl, "PairGroup", refuse)
            with pytest.raises(TransportUnavailable, match=r"no communicator with peer .*Duplicate GPU detected$"):
                await ours.transport.connect(theirs.description)
        assert not ours.transport.choices
        peer = await ours.transport.connect(theirs.description)  # the owner has taken no harm
        await ours.transport.read(peer, [5], [6], PATIENCE_S)
        assert holds(ours.pool, 6, 1, 5)


@pytest.mark.parametrize("said", [[0], [1 << 20], [1, 64], [2, 0]])
async def test_nonsense_ends_the_connection_and_nothing_else(said: list[int]) -> None:
    async with sides() as (ours, theirs):
        address = endpoint.decode(Endpoint, theirs.description, "gloo")
        assert address.chunk_bytes == CHUNK_BYTES
        local = ours.transport._require_pool()
        sock = await open_connection(address.host, address.port, address.key, local, theirs.description)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, np.array(said, "<u4").tobytes())
        assert len(await loop.sock_recv(sock, 4)) == 4  # where the store is
        sock.close()
        peer = await ours.transport.connect(theirs.description)
        await ours.transport.read(peer, [5], [6], PATIENCE_S)
        assert holds(ours.pool, 6, 1, 5)


async def test_nccl_moves_no_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "nccl_type", lambda: None)
    transport = PairTransport(PoolIdentity("a", "b"), HOST)
    with pytest.raises(TransportUnavailable, match="NCCL moves GPU memory, this pool is on cpu"):
        transport.register_pool(torch.zeros(4, 4))
    await transport.close()
