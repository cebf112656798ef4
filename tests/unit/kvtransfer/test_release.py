"""A closed transport frees its pool at once: pools are large, and the garbage collector may run late."""

import asyncio
import gc
import uuid
import weakref
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from torch import Tensor

from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransferDeadline
from tests.marks import each_value
from tests.unit.kvtransfer.kv_peers import Cluster
from tests.unit.kvtransfer.read_rig import LARGE_SHAPE, PATIENCE_S, every_backend, every_process_backend, until

BLOCKS = list(range(64))
CONNECT_DEADLINE_S = 10.0  # longer than any connection takes on a busy machine
SHORT_DEADLINE_S = 1.0  # for connections that must time out

Life = Callable[[Cluster], Awaitable[None]]


@pytest.fixture(autouse=True)
def _without_collector(small_heap: None) -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def num_mapped_pools() -> int:
    """Return the number of mapped pools in this process, including those of peers."""
    return sum("memfd:baton-kv-pool" in line for line in Path("/proc/self/maps").read_text().splitlines())


def new_cluster(backend: str, connect_deadline_s: float) -> Cluster:
    """Create the local side."""
    return Cluster(backend, PoolIdentity(uuid.uuid4().hex, "model"), LARGE_SHAPE, connect_deadline_s)


async def stays_unused(cluster: Cluster) -> None:
    """Close without any read."""


async def reads(cluster: Cluster) -> None:
    """Read successfully."""
    source = await cluster.start_peer()
    peer = await cluster.transport.connect(source.description)
    await cluster.transport.read(peer, BLOCKS, BLOCKS, PATIENCE_S)
    await cluster.transport.read(peer, [3], [4], PATIENCE_S)


async def is_refused(cluster: Cluster) -> None:
    """Be refused by a peer: wrong incarnation, then an unknown block."""
    source = await cluster.start_peer()
    with suppress(PeerLost, PeerRefused):
        await cluster.transport.connect(replace(source.description, incarnation="another life"))
        pytest.fail("it was let in")
    peer = await cluster.transport.connect(source.description)
    with suppress(PeerRefused):
        await cluster.transport.read(peer, [64], [0], PATIENCE_S)
        pytest.fail("it read what is not there")


async def loses_the_peer(cluster: Cluster) -> None:
    """Lose the peer before a read, and before connecting."""
    source = await cluster.start_peer()
    peer = await cluster.transport.connect(source.description)
    source.kill()
    with suppress(PeerLost):
        await cluster.transport.read(peer, BLOCKS, BLOCKS, PATIENCE_S)
        pytest.fail("it read from the dead")
    with suppress(PeerLost):
        await cluster.transport.connect(source.description)
        pytest.fail("it reached the dead")


async def waits_in_vain(cluster: Cluster) -> None:
    """Time out with a stopped peer, in a read and while connecting."""
    source, another = await cluster.start_peer(), await cluster.start_peer()
    peer = await cluster.transport.connect(source.description)
    for each in (source, another):
        each.stop()
    with suppress(TransferDeadline):  # some transports can read the pool of a stopped process
        await cluster.transport.read(peer, BLOCKS, BLOCKS, 0.1)
    with suppress(TransferDeadline):
        await cluster.transport.connect(another.description)
        pytest.fail("a stopped process answered")


async def is_cancelled(cluster: Cluster) -> None:
    """Be cancelled in a read and while connecting."""
    source, another = await cluster.start_peer(), await cluster.start_peer()
    peer = await cluster.transport.connect(source.description)
    reading = asyncio.create_task(cluster.transport.read(peer, BLOCKS, BLOCKS, PATIENCE_S))
    connecting = asyncio.create_task(cluster.transport.connect(another.description))
    for _ in range(3):
        await asyncio.sleep(0)
    for task in (reading, connecting):
        task.cancel()
    await asyncio.wait((reading, connecting))


async def closes_in_the_middle(cluster: Cluster) -> None:
    """Close during a read."""
    peer = await cluster.transport.connect((await cluster.start_peer()).description)
    reading = asyncio.create_task(cluster.transport.read(peer, BLOCKS, BLOCKS, PATIENCE_S))
    await asyncio.sleep(0)
    await cluster.transport.close()
    await asyncio.wait((reading,))
    assert reading.exception() is None or isinstance(reading.exception(), PeerLost)


LIVES = (stays_unused, reads, is_refused, loses_the_peer, waits_in_vain, is_cancelled, closes_in_the_middle)


async def live(backend: str, life: Life) -> "weakref.ref[Tensor]":
    """Run a transport from creation to close; return a weak reference to its pool."""
    cluster = new_cluster(backend, SHORT_DEADLINE_S if life is waits_in_vain else CONNECT_DEADLINE_S)
    pool = weakref.ref(cluster.pool)
    try:
        await life(cluster)
    finally:
        await cluster.end()
    return pool


@each_value
@every_backend
@pytest.mark.parametrize("life", LIVES)
async def test_closing_the_transport_frees_the_pool(backend: str, life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "nixl_emulated":
        monkeypatch.setenv("UCX_TLS", "tcp")
    before = num_mapped_pools()
    pool = await live(backend, life)
    await until(lambda: pool() is None and num_mapped_pools() == before)
    assert pool() is None


@every_process_backend
async def test_closing_frees_a_pool_that_was_read(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "nixl_emulated":
        monkeypatch.setenv("UCX_TLS", "tcp")
    before = num_mapped_pools()

    async def is_read(cluster: Cluster) -> None:
        async def read(reader: Cluster) -> None:
            await reader.transport.read(await reader.transport.connect(cluster.description), BLOCKS, BLOCKS, PATIENCE_S)

        await live(backend, read)

    pool = await live(backend, is_read)
    await until(lambda: pool() is None and num_mapped_pools() == before)
