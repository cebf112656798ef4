"""Every transport with peers that die, are stopped or are dropped."""

import asyncio
import random
from contextlib import suppress

import pytest

from baton.kvtransfer.errors import PeerLost, TransferDeadline, TransportUnavailable
from tests.marks import each_value
from tests.unit.kvtransfer.kv_peers import holds
from tests.unit.kvtransfer.read_rig import (
    LARGE_SHAPE,
    PATIENCE_S,
    STOPPED_PEER_IS_READABLE,
    UNTOUCHED,
    Gate,
    cluster_of,
    every_backend,
    every_process_backend,
    lists,
    soon,
    until,
)


@every_backend
async def test_peer_killed_before_and_restarted(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch) as cluster:
        source = await cluster.start_peer()
        peer = await cluster.transport.connect(source.description)
        source.kill()
        with pytest.raises(PeerLost):
            await cluster.transport.read(peer, [0, 1, 2], [3, 4, 5], PATIENCE_S)
        with pytest.raises(PeerLost):
            await cluster.transport.connect(source.description)
        assert peer not in cluster.transport.choices
        assert len(cluster.transport.quarantine) == 0
        again = await cluster.start_peer(seed=2)
        with pytest.raises(PeerLost):
            await cluster.transport.connect(source.description)
        peer = await cluster.transport.connect(again.description)
        await cluster.transport.read(peer, [0, 1, 2], [3, 4, 5], PATIENCE_S)
        assert holds(cluster.pool, 5, 2, 2)


@every_backend
async def test_peer_killed_during_a_read(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch, LARGE_SHAPE) as cluster:
        source = await cluster.start_peer()
        peer = await cluster.transport.connect(source.description)
        remote, local = lists(random.Random(3), 64, 64)
        gate = Gate(monkeypatch, cluster)
        read = asyncio.create_task(cluster.transport.read(peer, remote, local, PATIENCE_S))
        await gate.hold(local[0], source)
        assert all(block in cluster.transport.quarantine for block in local)
        source.kill()
        gate.open()
        with pytest.raises(PeerLost):
            await read
        await soon(cluster.transport.quarantine.wait_clear(local))
        assert peer not in cluster.transport.choices


@every_backend
async def test_peer_killed_after_a_read(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch) as cluster:
        source = await cluster.start_peer()
        peer = await cluster.transport.connect(source.description)
        await cluster.transport.read(peer, [1, 2, 3], [4, 5, 6], PATIENCE_S)
        source.kill()
        if backend != "in_memory":
            await until(lambda: peer not in cluster.transport.choices)  # noticed without any read
        with pytest.raises(PeerLost):
            await cluster.transport.read(peer, [1], [7], PATIENCE_S)
        assert holds(cluster.pool, 6, 1, 3)
        assert bool((cluster.pool[7] == UNTOUCHED).all())


@every_backend
async def test_connecting_to_a_stopped_peer_ends_at_the_deadline(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch, connect_deadline_s=0.2) as cluster:
        source = await cluster.start_peer()
        source.stop()
        with pytest.raises(TransferDeadline):
            await cluster.transport.connect(source.description)
        assert not cluster.transport.choices


@every_backend
async def test_peer_stopped_during_a_read(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch, LARGE_SHAPE) as cluster:
        source = await cluster.start_peer()
        peer = await cluster.transport.connect(source.description)
        remote, local = lists(random.Random(4), 64, 60)
        source.stop()
        if backend in STOPPED_PEER_IS_READABLE:
            await cluster.transport.read(peer, remote, local, PATIENCE_S)
        elif backend == "nixl":
            # The kernel can read a stopped process, but UCX may have to exchange messages with it first.
            with suppress(TransferDeadline):
                await cluster.transport.read(peer, remote, local, 0.5)
        else:
            with pytest.raises(TransferDeadline):
                await cluster.transport.read(peer, remote, local, 0.2)
        source.resume()
        await soon(cluster.transport.quarantine.wait_clear(local))
        cluster.pool.fill_(UNTOUCHED)
        free = [block for block in range(64) if block not in local]
        await cluster.transport.read(await cluster.transport.connect(source.description), free, free, PATIENCE_S)
        assert all(holds(cluster.pool, block, 1, block) for block in free)
        # The peer has served a read since, so nothing of the first read can land any more.
        assert bool((cluster.pool[local] == UNTOUCHED).all())


async def test_a_transfer_that_cannot_be_aborted_stays_in_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of("nixl_emulated", monkeypatch, LARGE_SHAPE) as cluster:
        source = await cluster.start_peer()
        peer = await cluster.transport.connect(source.description)
        blocks = list(range(64))
        source.stop()
        with pytest.raises(TransferDeadline):
            await cluster.transport.read(peer, blocks, blocks, 0.1)
        clear = asyncio.create_task(cluster.transport.quarantine.wait_clear(blocks))
        done, _ = await asyncio.wait({clear}, timeout=0.2)
        assert not done
        assert len(cluster.transport.quarantine) == 64
        source.kill()
        await soon(clear)
        assert len(cluster.transport.quarantine) == 0


@each_value
@every_backend
@pytest.mark.parametrize("how", ["deadline", "cancelled", "forgotten"])
async def test_abandoned_read_keeps_its_blocks_until_no_byte_can_land(
    backend: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(backend, monkeypatch, LARGE_SHAPE) as cluster:
        source = await cluster.start_peer()
        peer = await cluster.transport.connect(source.description)
        remote, local = lists(random.Random(5), 64, 60)
        gate = Gate(monkeypatch, cluster)
        deadline_s = 0.3 if how == "deadline" else PATIENCE_S
        read = asyncio.create_task(cluster.transport.read(peer, remote, local, deadline_s))
        await gate.hold(local[0], source)
        if how == "cancelled":
            read.cancel()
        elif how == "forgotten":
            cluster.transport.forget(peer)
            gate.open()
        with pytest.raises((TransferDeadline, PeerLost, asyncio.CancelledError)) as raised:
            await read
        expected = {"deadline": TransferDeadline, "cancelled": asyncio.CancelledError, "forgotten": PeerLost}
        assert raised.type is expected[how]
        if how != "forgotten" and backend != "in_memory":
            assert all(block in cluster.transport.quarantine for block in local)
        gate.open()
        await soon(cluster.transport.quarantine.wait_clear(local))
        cluster.pool.fill_(UNTOUCHED)
        free = [block for block in range(64) if block not in local]
        await cluster.transport.read(await cluster.transport.connect(source.description), free, free, PATIENCE_S)
        assert all(holds(cluster.pool, block, 1, block) for block in free)
        assert bool((cluster.pool[local] == UNTOUCHED).all())


@every_process_backend
async def test_closing_ends_reads_on_both_sides(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch, LARGE_SHAPE) as cluster:
        source = await cluster.start_peer()
        peer = await cluster.transport.connect(source.description)
        await source.close()
        await until(lambda: peer not in cluster.transport.choices)
        with pytest.raises(PeerLost):
            await cluster.transport.read(peer, [0, 1, 2], [0, 1, 2], PATIENCE_S)
        another = await cluster.start_peer()
        peer = await cluster.transport.connect(another.description)
        gate = Gate(monkeypatch, cluster)
        blocks = list(range(64))
        read = asyncio.create_task(cluster.transport.read(peer, blocks, blocks, PATIENCE_S))
        await gate.hold(0, another)
        closing = asyncio.create_task(cluster.transport.close())
        await asyncio.sleep(0)
        gate.open()
        with pytest.raises(PeerLost):
            await read
        await soon(closing)
        assert len(cluster.transport.quarantine) == 0


@every_process_backend
async def test_a_closed_transport_does_not_connect(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection opened after `close` would leak."""
    async with cluster_of(backend, monkeypatch) as cluster:
        source = await cluster.start_peer()
        await cluster.transport.close()
        with pytest.raises((PeerLost, TransportUnavailable, ValueError)):
            await cluster.transport.connect(source.description)
        assert not cluster.transport.choices
