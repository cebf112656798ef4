"""Two-sided reads over gloo, beyond the conformance suite."""

import asyncio
import threading
from contextlib import suppress

import numpy as np
import pytest
import torch

from baton.kvtransfer import endpoint
from baton.kvtransfer.base import PeerId, PoolIdentity
from baton.kvtransfer.errors import PeerLost, TransferDeadline, TransferFailed, TransportUnavailable
from baton.kvtransfer.nccl import transport as nccl
from baton.kvtransfer.nccl.communicator import PairGroup
from baton.kvtransfer.nccl.transport import CHUNK_BYTES, Endpoint, PairBackend, PairConnection
from baton.kvtransfer.tcp.connection import open_connection
from baton.kvtransfer.transport import Transport
from tests.unit.kvtransfer.kv_peers import HOST, holds
from tests.unit.kvtransfer.pair_rig import Side, sides
from tests.unit.kvtransfer.read_rig import PATIENCE_S, UNTOUCHED, soon


async def test_an_aborted_read_leaves_the_communicator_usable() -> None:
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
            # The chunks that the aborted read had requested do not end up in this read.
            await ours.transport.read(peer, [63, 62, 61], [0, 1, 2], PATIENCE_S)
            assert all(holds(ours.pool, block, 1, 63 - block) for block in range(3))
            assert bool((ours.pool[3:] == UNTOUCHED).all())


async def test_reads_from_one_peer_wait_for_each_other_no_longer_than_their_deadlines() -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        reads = ours.transport._peers[peer].reads
        await reads.acquire()
        with pytest.raises(TransferDeadline, match="still busy with earlier reads"):
            await ours.transport.read(peer, [0], [0], 0.05)
        waiting = asyncio.create_task(ours.transport.read(peer, [0], [0], PATIENCE_S))
        await asyncio.sleep(0)
        ours.transport.forget(peer)
        reads.release()
        with pytest.raises(PeerLost, match="forgotten"):
            await waiting


@pytest.mark.parametrize("words", [[0], [1 << 20], [1, 64], [2, 0]])
async def test_an_invalid_request_ends_only_its_connection(words: list[int]) -> None:
    async with sides() as (ours, theirs):
        address = endpoint.decode(Endpoint, theirs.description, "gloo")
        assert address.chunk_bytes == CHUNK_BYTES
        local = ours.transport._require_pool()
        sock = await open_connection(address.host, address.port, address.key, local, theirs.description)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(sock, np.array(words, "<u4").tobytes())
        assert len(await loop.sock_recv(sock, 4)) == 4  # the port of the store
        sock.close()
        peer = await ours.transport.connect(theirs.description)
        await ours.transport.read(peer, [5], [6], PATIENCE_S)
        assert holds(ours.pool, 6, 1, 5)


async def test_nccl_rejects_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "nccl_type", lambda: None)
    transport = Transport(PoolIdentity("a", "b"), [PairBackend(HOST)])
    with pytest.raises(TransportUnavailable, match="NCCL transfers GPU memory, this pool is on cpu"):
        transport.register_pool(torch.zeros(4, 4))
    await transport.close()


def group_of(side: Side, peer: PeerId) -> PairGroup:
    connection = side.transport._peers[peer].connection
    assert isinstance(connection, PairConnection)
    return connection.group


def failing_once(method: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the first call of a group's method fail before it does anything."""
    real, errors = getattr(PairGroup, method), [error]

    def fail(self: PairGroup, *args: object) -> object:
        if errors:
            raise errors.pop()
        return real(self, *args)

    monkeypatch.setattr(PairGroup, method, fail)


@pytest.mark.parametrize("method", ["scatter", "receive"])
async def test_after_an_unexpected_error_the_next_read_gets_its_own_blocks(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        failing_once(method, torch.OutOfMemoryError("CUDA out of memory"), monkeypatch)
        with pytest.raises(torch.OutOfMemoryError):
            await ours.transport.read(peer, list(range(32)), list(range(32)), PATIENCE_S)
        assert peer not in ours.transport.choices  # requested chunks are still in flight over this communicator
        await ours.transport.connect(theirs.description)
        ours.pool.fill_(UNTOUCHED)
        await ours.transport.read(peer, list(range(40, 48)), list(range(8)), PATIENCE_S)
        assert all(holds(ours.pool, block, 1, 40 + block) for block in range(8))
        assert bool((ours.pool[8:] == UNTOUCHED).all())


@pytest.mark.parametrize("method", ["scatter", "receive"])
async def test_after_a_transfer_failure_the_communicator_is_kept_once_drained(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        group = group_of(ours, peer)
        failing_once(method, TransferFailed("no memory"), monkeypatch)
        with pytest.raises(TransferFailed, match="no memory"):
            await ours.transport.read(peer, list(range(32)), list(range(32)), PATIENCE_S)
        ours.pool.fill_(UNTOUCHED)
        await ours.transport.read(peer, list(range(40, 48)), list(range(8)), PATIENCE_S)
        assert all(holds(ours.pool, block, 1, 40 + block) for block in range(8))
        assert group_of(ours, peer) is group


async def test_torch_failures_become_transfer_failures() -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        group, rows = group_of(ours, peer), ours.pool.view(torch.uint8)
        with pytest.raises(TransferFailed, match="receiving blocks failed: "):
            group.receive(-1, 8)
        with pytest.raises(TransferFailed, match="copying received blocks failed: "):
            group.scatter(torch.zeros(1, 8, dtype=torch.uint8), rows, [0])
