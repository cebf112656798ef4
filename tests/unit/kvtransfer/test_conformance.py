"""The contract of every transport, tested with peers in other processes."""

import asyncio
import gc
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import islice

import pytest
import torch
from torch import Tensor

from baton.kvtransfer.base import PeerId
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable
from tests.unit.kvtransfer.kv_peers import ProcessPeer, holds
from tests.unit.kvtransfer.read_rig import (
    LARGE_SHAPE,
    PATIENCE_S,
    SHAPE,
    UNTOUCHED,
    cluster_of,
    every_backend,
    every_process_backend,
)


@every_backend
async def test_random_blocks_arrive_and_no_other_block_changes(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    async with cluster_of(backend, monkeypatch) as cluster:
        source = await cluster.start_peer(shape=(100, SHAPE[1]))
        peer = await cluster.transport.connect(source.description)
        assert await cluster.transport.connect(source.description) == peer == source.description.incarnation
        assert cluster.transport.choices[peer].reason
        for count in (1, 2, 63, 64, 0, 17):
            cluster.pool.fill_(UNTOUCHED)
            remote, local = rng.sample(range(100), count), rng.sample(range(64), count)
            await cluster.transport.read(peer, remote, local, PATIENCE_S)
            for theirs, ours in zip(remote, local, strict=True):
                assert holds(cluster.pool, ours, 1, theirs)
            others = [block for block in range(64) if block not in local]
            assert bool((cluster.pool[others] == UNTOUCHED).all())
        await cluster.transport.read(peer, list(range(20, 60)), list(range(10, 50)), PATIENCE_S)
        assert all(holds(cluster.pool, block, 1, block + 10) for block in range(10, 50))
        assert len(cluster.transport.quarantine) == 0


def note_landed(pool: Tensor, pairs: Iterator[tuple[int, int]], landed: list[bool], num_blocks: int) -> None:
    """Record whether the next `num_blocks` blocks have the expected contents."""
    landed += [holds(pool, ours, 1, theirs) for ours, theirs in islice(pairs, num_blocks)]


@every_backend
async def test_blocks_are_complete_when_reported_as_landed(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(3)
    async with cluster_of(backend, monkeypatch, LARGE_SHAPE) as cluster:
        peer = await cluster.transport.connect((await cluster.start_peer(shape=LARGE_SHAPE)).description)
        for remote in (rng.sample(range(64), 40), list(range(20, 60)), [7], []):
            cluster.pool.fill_(UNTOUCHED)
            local = rng.sample(range(64), len(remote))
            pairs = iter(list(zip(local, remote, strict=True)))
            landed: list[bool] = []
            note = partial(note_landed, cluster.pool, pairs, landed)
            await cluster.transport.read(peer, remote, local, PATIENCE_S, note)
            assert landed == [True] * len(remote)


@every_backend
async def test_concurrent_reads_from_two_peers(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch) as cluster:
        sources = [await cluster.start_peer(seed=seed) for seed in (1, 2)]
        # Connecting twice at once to the same peer opens one connection.
        connected = await asyncio.gather(*(cluster.transport.connect(source.description) for source in sources * 2))
        peers = connected[:2]
        assert connected[2:] == peers
        blocks = list(range(64))
        random.Random(2).shuffle(blocks)
        parts = [blocks[start : start + 8] for start in range(0, 64, 8)]
        reads = [
            cluster.transport.read(peers[index % 2], [63 - block for block in part], part, PATIENCE_S)
            for index, part in enumerate(parts)
        ]
        await asyncio.gather(*reads)
        for index, part in enumerate(parts):
            assert all(holds(cluster.pool, block, 1 + index % 2, 63 - block) for block in part)


@every_backend
async def test_a_peer_other_than_described_is_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch) as cluster:
        source = await cluster.start_peer()
        right = source.description
        for wrong, words in (
            (replace(right, fingerprint="another model"), "fingerprint"),
            (replace(right, block_bytes=right.block_bytes - 8), "block size"),
        ):
            with pytest.raises(PeerRefused, match=words):
                await cluster.transport.connect(wrong)
        with pytest.raises((PeerRefused, PeerLost)):
            await cluster.transport.connect(replace(right, incarnation="an earlier life"))
        for wrong in (replace(right, num_blocks=65), replace(right, block_bytes=right.block_bytes // 2)):
            with pytest.raises(PeerRefused):
                await cluster.transport.connect(wrong)
        with pytest.raises(TransportUnavailable, match=r"does not offer|no KV transport"):
            await cluster.transport.connect(replace(right, endpoints={}))
        if backend != "in_memory":
            for garbage in (b"", b"{}", b"[1]", b'{"host": 3}', b"\xff"):
                with pytest.raises(PeerRefused, match="garbled"):
                    await cluster.transport.connect(
                        replace(right, incarnation="x", endpoints=dict.fromkeys(right.endpoints, garbage))
                    )
        assert not cluster.transport.choices
        peer = await cluster.transport.connect(right)
        await cluster.transport.read(peer, [5], [6], PATIENCE_S)
        assert holds(cluster.pool, 6, 1, 5)


@every_backend
async def test_a_peer_with_another_model_or_block_size_is_refused(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_of(backend, monkeypatch) as cluster:
        stranger = await cluster.start_peer(fingerprint="another model")
        odd = await cluster.start_peer(shape=(64, SHAPE[1] - 1))
        half = await cluster.start_peer(shape=(64, SHAPE[1] // 2))
        for peer in (stranger, odd):
            with pytest.raises(PeerRefused):
                await cluster.transport.connect(peer.description)
        # The description matches ours although the pool does not: the handshake must detect it.
        for lie in (
            replace(stranger.description, fingerprint="model"),
            replace(odd.description, block_bytes=SHAPE[1] * 8),
            replace(half.description, block_bytes=SHAPE[1] * 8),
        ):
            with pytest.raises(PeerRefused):
                await cluster.transport.connect(lie)
        assert not cluster.transport.choices


@every_backend
async def test_wrong_blocks_are_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch) as cluster:
        source = await cluster.start_peer(shape=(32, SHAPE[1]))
        peer = await cluster.transport.connect(source.description)
        for remote in ([32], [-1], [0, 1 << 40]):
            with pytest.raises(PeerRefused, match="block"):
                await cluster.transport.read(peer, remote, list(range(len(remote))), PATIENCE_S)
        for local in ([64], [-1]):
            with pytest.raises(ValueError, match="block"):
                await cluster.transport.read(peer, [0], local, PATIENCE_S)
        with pytest.raises(ValueError, match="into"):
            await cluster.transport.read(peer, [0, 1], [0], PATIENCE_S)
        with pytest.raises(ValueError, match="twice"):
            await cluster.transport.read(peer, [0, 1], [3, 3], PATIENCE_S)
        with pytest.raises(PeerLost, match="not connected"):
            await cluster.transport.read(PeerId("nobody"), [0], [0], PATIENCE_S)
        assert bool((cluster.pool == UNTOUCHED).all())
        assert len(cluster.transport.quarantine) == 0
        await cluster.transport.read(peer, [31, 31], [0, 63], PATIENCE_S)
        assert holds(cluster.pool, 0, 1, 31)
        assert holds(cluster.pool, 63, 1, 31)


@pytest.mark.slow
@every_process_backend
async def test_thousands_of_reads_leak_nothing(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(6)
    async with cluster_of(backend, monkeypatch) as cluster:
        source = await cluster.start_peer()
        assert isinstance(source, ProcessPeer)
        peer = await cluster.transport.connect(source.description)

        async def read_many(first: int, count: int) -> None:
            for _ in range(count):
                size = rng.randint(1, 4)
                await cluster.transport.read(peer, rng.sample(range(64), size), range(first, first + size), PATIENCE_S)

        async def reconnect(count: int) -> None:
            for _ in range(count):
                cluster.transport.forget(peer)
                await cluster.transport.connect(source.description)

        async def resources() -> tuple[int, int, int]:
            gc.collect()
            return len(os.listdir("/proc/self/fd")), threading.active_count(), await source.num_descriptors()

        num_readers = 8 if backend != "nixl_emulated" else 2
        for round_ in range(2):
            await asyncio.gather(*(read_many(4 * reader, 250 // num_readers) for reader in range(num_readers)))
            await reconnect(5)
            if round_ == 0:
                before, resident = await resources(), resident_bytes()
        await asyncio.gather(*(read_many(4 * reader, 1500 // num_readers) for reader in range(num_readers)))
        await reconnect(20)
        after, end_s = await resources(), time.monotonic() + PATIENCE_S
        while any(now > then + 6 for then, now in zip(before, after, strict=True)) and time.monotonic() < end_s:
            await asyncio.sleep(0.01)  # communicators are aborted in background threads
            after = await resources()
        for then, now in zip(before, after, strict=True):
            assert now <= then + 6, (before, after)
        assert resident_bytes() - resident < 16 << 20
        assert len(cluster.transport.quarantine) == 0


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@every_backend
async def test_only_contiguous_pools_are_registered(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster_of(backend, monkeypatch) as cluster:
        for pool in (torch.zeros(8, 16).t(), torch.zeros(0, 4), torch.zeros(4), torch.zeros(4, 4, device="meta")):
            with pytest.raises(ValueError, match="pool"):
                cluster.transport.register_pool(pool)
