"""A cluster of pools to read from, and a gate that pauses a read midway."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from torch import Tensor

from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.transfers import Transfer
from tests.marks import slow_case
from tests.unit.kvtransfer.kv_peers import PROCESS_BACKENDS, VARIANTS, Cluster, Peer

SHAPE = (64, 8192)  # blocks of 64 KiB
LARGE_SHAPE = (64, 131072)  # blocks of 1 MiB: several steps of every transport
UNTOUCHED = -7
PATIENCE_S = 30.0  # for expected events on a busy machine
STOPPED_PEER_IS_READABLE = ("shared_memory", "auto")


class Gate:
    """A gate that pauses a read midway: some bytes have arrived, the others arrive once it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> None:
        self._cluster = cluster
        self._reached = threading.Event()
        self._opened = threading.Event()
        self._block: Tensor | None = None
        original = Transfer.check

        def check(transfer: Transfer) -> None:
            if self._has_changed():
                self._reached.set()
                assert self._opened.wait(PATIENCE_S)
            original(transfer)

        monkeypatch.setattr(Transfer, "check", check)

    async def hold(self, block: int, peer: Peer) -> None:
        """Wait until the read has reached the gate; `block`: the read's first local block."""
        self._block = self._cluster.pool[block]
        if self._cluster.backend == "in_memory":
            while not self._has_changed():
                await asyncio.sleep(0)
            peer.stop()
            self._resume = peer.resume
        else:
            assert await asyncio.to_thread(self._reached.wait, PATIENCE_S)

    def open(self) -> None:
        """Let the read continue."""
        self._opened.set()
        if self._cluster.backend == "in_memory":
            self._resume()

    def _has_changed(self) -> bool:
        return self._block is not None and int(self._block[0]) != UNTOUCHED


@asynccontextmanager
async def cluster_of(
    backend: str, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int] = SHAPE, connect_deadline_s: float = 10.0
) -> AsyncIterator[Cluster]:
    if backend == "nixl_emulated":
        monkeypatch.setenv("UCX_TLS", "tcp")
    cluster = Cluster(backend, PoolIdentity(f"reader-{random.getrandbits(64):x}", "model"), shape, connect_deadline_s)
    cluster.pool.fill_(UNTOUCHED)
    try:
        yield cluster
    finally:
        await cluster.end()


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true. Raises TimeoutError after 30 s."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.001)


async def soon(awaitable: Awaitable[None]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await awaitable


def lists(rng: random.Random, num_blocks: int, count: int) -> tuple[list[int], list[int]]:
    return rng.sample(range(num_blocks), count), rng.sample(range(num_blocks), count)


slow_variants = tuple(map(slow_case, VARIANTS))
every_backend = pytest.mark.parametrize("backend", ["in_memory", *PROCESS_BACKENDS, *slow_variants])
every_process_backend = pytest.mark.parametrize("backend", [*PROCESS_BACKENDS, *slow_variants])
