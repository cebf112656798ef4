"""Reads through windows of host memory: ownership of frames, and the control protocol."""

import asyncio
import logging
import random
import socket
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import pytest
import torch

from baton.kvtransfer import endpoint
from baton.kvtransfer.backend import Unavailable
from baton.kvtransfer.base import KVTransport, PoolIdentity
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransferError, TransferFailed, TransportUnavailable
from baton.kvtransfer.factory import create_transport
from baton.kvtransfer.local_pool import LocalPool
from baton.kvtransfer.shared_memory.pool import SharedPool
from baton.kvtransfer.shared_memory.transport import SharedMemoryBackend
from baton.kvtransfer.staged import owner as staging_owner
from baton.kvtransfer.staged import window as staging_window
from baton.kvtransfer.staged.control import StagingControl, send_words
from baton.kvtransfer.staged.copy import StagingCopy
from baton.kvtransfer.staged.transport import NAME, Endpoint, StagedBackend
from baton.kvtransfer.tcp.connection import open_connection
from baton.kvtransfer.transport import Transport
from tests.unit.kvtransfer.kv_peers import HOST, fill, holds
from tests.unit.kvtransfer.read_rig import PATIENCE_S, SHAPE, UNTOUCHED, soon, until

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two frames of two blocks for readers, and two for reads."""
    monkeypatch.setattr(staging_window, "FRAME_BYTES", 2 * SHAPE[1] * 8)


class Side:
    """A pool that stands for one on a GPU: it is read only through a window."""

    def __init__(self, seed: int, window_bytes: int = 0, *others: Unavailable) -> None:
        identity = PoolIdentity(uuid.uuid4().hex, "model")
        window = SharedPool()
        self.pool = torch.full(SHAPE, UNTOUCHED)
        if seed:
            fill(self.pool, seed)
        underneath = Transport(identity, [SharedMemoryBackend(window)])
        self.backend = StagedBackend(underneath, window, HOST, window_bytes=window_bytes)
        self.transport = Transport(identity, [*others, self.backend])
        self.description = self.transport.register_pool(self.pool)

    async def control(self, reader: "Side") -> StagingControl:
        """Open a reader's control connection that the test drives by hand."""
        address = endpoint.decode(Endpoint, self.description, NAME)
        local = reader.backend._require_local().pool
        return StagingControl(await open_connection(address.host, address.port, address.key, local, self.description))


@asynccontextmanager
async def sides(window_bytes: int = 0) -> AsyncIterator[tuple[Side, Side]]:
    """Create our side and a peer's."""
    both = Side(0, window_bytes), Side(1, window_bytes)
    try:
        yield both
    finally:
        for side in both:
            await side.transport.close()


async def test_more_reads_than_frames_all_complete() -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        blocks = list(range(64))
        random.Random(1).shuffle(blocks)
        parts = [blocks[start : start + 5] for start in range(0, 64, 5)]
        reads = [ours.transport.read(peer, [63 - each for each in part], part, PATIENCE_S) for part in parts]
        backwards = await theirs.transport.connect(ours.description)
        await asyncio.gather(*reads, theirs.transport.read(backwards, [], [], PATIENCE_S))
        assert all(holds(ours.pool, block, 1, 63 - block) for block in blocks)
        assert ours.transport.choices[peer].transport == "staged_shared_memory"
        assert ours.transport.choices[peer].reason == "through host memory, same host"


async def test_both_sides_read_each_other_at_once() -> None:
    async with sides() as (ours, theirs):
        peer, back = await asyncio.gather(
            ours.transport.connect(theirs.description), theirs.transport.connect(ours.description)
        )
        fill(ours.pool[:32], 2)
        for _ in range(3):
            await asyncio.gather(
                ours.transport.read(peer, list(range(32)), list(range(32, 64)), PATIENCE_S),
                theirs.transport.read(back, list(range(32)), list(range(32, 64)), PATIENCE_S),
            )
        assert all(holds(ours.pool, block + 32, 1, block) for block in range(32))
        assert all(holds(theirs.pool, block + 32, 2, block) for block in range(32))


async def test_a_stalled_reader_loses_its_frames_and_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging_owner, "LEND_S", 0.3)
    async with sides() as (ours, theirs):
        idle = await theirs.control(ours)
        await idle.request([0, 1])
        await idle.request([2, 3])
        frames = {await idle.staged(), await idle.staged()}
        assert len(frames) == 2  # all frames for readers
        peer = await ours.transport.connect(theirs.description)
        await soon(ours.transport.read(peer, [5, 6, 7], [5, 6, 7], PATIENCE_S))
        assert all(holds(ours.pool, block, 1, block) for block in (5, 6, 7))
        with pytest.raises((PeerLost, OSError)):  # so it knows that the frame may have been reused
            await soon(idle.give_back())
        idle.sock.close()


async def test_a_frame_is_freed_when_its_reader_ends() -> None:
    async with sides() as (ours, theirs):
        for _ in range(5):
            gone = await theirs.control(ours)
            await gone.request([0])
            await gone.request([1])
            await gone.staged()
            gone.sock.close()
        peer = await ours.transport.connect(theirs.description)
        await soon(ours.transport.read(peer, list(range(64)), list(range(64)), PATIENCE_S))
        assert holds(ours.pool, 63, 1, 63)


async def test_a_stalled_reader_holds_at_most_its_share_of_frames_over_all_connections() -> None:
    frame_bytes = 2 * SHAPE[1] * 8
    async with sides(window_bytes=16 * frame_bytes) as (ours, theirs):
        stopped = Side(0)
        controls = [await theirs.control(stopped) for _ in range(5)]
        for control in controls:
            await control.request([0])
            await control.request([1])
        frames = theirs.backend._require_local().window.for_readers
        await until(lambda: len(frames) == 6)
        peer = await ours.transport.connect(theirs.description)
        await ours.transport.read(peer, list(range(64)), list(range(64)), staging_owner.LEND_S / 2)
        assert len(frames) == 6  # of 8
        for control in controls:
            control.sock.close()
        await until(lambda: len(frames) == 8)
        await stopped.transport.close()


@pytest.mark.parametrize(
    "words",
    [
        (9,),  # an unknown message
        (2,),  # the return of a frame that was not lent
        (1, 0),  # no units
        (1, 3, 0, 1, 2),  # more units than a frame has
        (1, 1, 0, 1, 1, 0, 1, 1, 0),  # a third frame
        (1, 1 << 31),
    ],
)
async def test_an_invalid_message_ends_only_its_connection(words: tuple[int, ...]) -> None:
    async with sides() as (ours, theirs):
        wrong = await theirs.control(ours)
        await send_words(wrong.sock, *words)
        with suppress(TransferError, OSError):
            for _ in range(3):
                await soon(wrong.staged())
            pytest.fail("it got three frames")
        wrong.sock.close()
        peer = await ours.transport.connect(theirs.description)
        await ours.transport.read(peer, [3], [4], PATIENCE_S)
        assert holds(ours.pool, 4, 1, 3)


async def test_the_owner_refuses_unknown_blocks_too() -> None:
    async with sides() as (ours, theirs):
        control = await theirs.control(ours)
        await control.request([64])
        with pytest.raises(PeerRefused, match=r"block 64 is not one of the pool's 64"):
            await soon(control.staged())
        control.sock.close()


async def test_use_as_a_last_resort_is_logged_as_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    ours = Side(0, 0, Unavailable("nixl", "UCX has no CUDA"))
    async with sides() as (_, theirs):
        peer = await ours.transport.connect(theirs.description)
        (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        message = warning.getMessage()
        assert "over staged_shared_memory as a last resort" in message
        assert "twice over PCIe" in message
        assert "nixl: UCX has no CUDA" in message
        assert ours.transport.choices[peer].transport == "staged_shared_memory"
        await ours.transport.close()


@pytest.mark.parametrize("name", ["tcp", "shared_memory"])
async def test_a_host_memory_transport_names_those_for_gpus(name: str) -> None:
    memory = SharedPool()
    transport = create_transport(name, PoolIdentity("a", "b"), memory, HOST)
    with pytest.raises(ValueError, match=r"on the CPU for this transport.*meta.*nixl, nccl, staged and auto"):
        transport.register_pool(torch.zeros(4, 4, device="meta"))
    await transport.close()
    memory.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
async def test_auto_on_a_gpu_consists_of_gpu_transports() -> None:
    async with pools("auto", GPU) as (ours, theirs):
        assert set(theirs.description.endpoints) >= {"staged"}
        assert "tcp" not in theirs.description.endpoints  # the endpoint of the window, whose blocks are staging frames
        peer = await ours.transport.connect(theirs.description)
        await ours.transport.read(peer, [3], [4], PATIENCE_S)
        assert holds(ours.pool, 4, 1, 3)


class Pooled:
    """A transport by name, with a registered pool."""

    def __init__(self, name: str, device: torch.device, seed: int) -> None:
        self.memory = SharedPool()
        self.transport: KVTransport = create_transport(
            name, PoolIdentity(uuid.uuid4().hex, "model"), self.memory, HOST, device=device
        )
        self.pool = torch.full(SHAPE, UNTOUCHED)
        if seed:
            fill(self.pool, seed)
        self.description = self.transport.register_pool(self.pool)


@asynccontextmanager
async def pools(name: str, device: torch.device) -> AsyncIterator[tuple[Pooled, Pooled]]:
    both = Pooled(name, device, 0), Pooled(name, device, 1)
    try:
        yield both
    finally:
        for each in both:
            await each.transport.close()
            each.memory.close()


async def test_staged_can_be_selected_by_name() -> None:
    async with pools("staged", torch.device("cpu")) as (ours, theirs):
        assert set(theirs.description.endpoints) == {"staged"}
        peer = await ours.transport.connect(theirs.description)
        await ours.transport.read(peer, [3], [4], PATIENCE_S)
        assert holds(ours.pool, 4, 1, 3)
        assert ours.transport.choices[peer].transport == "staged_shared_memory"


async def test_a_peer_without_a_window_is_not_read_through_one() -> None:
    async with sides() as (ours, _), pools("tcp", torch.device("cpu")) as (_, theirs):
        with pytest.raises(TransportUnavailable, match="does not offer staged"):
            await ours.transport.connect(theirs.description)


def a_staged_transport(port: int = 0) -> tuple[Transport, SharedPool]:
    identity, window = PoolIdentity(uuid.uuid4().hex, "model"), SharedPool()
    underneath = Transport(identity, [SharedMemoryBackend(window)])
    return Transport(identity, [StagedBackend(underneath, window, HOST, port)]), window


async def test_without_memory_for_a_window_staged_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: SharedPool, *_args: object) -> None:
        raise MemoryError("no memory for a pool of 1 bytes")

    transport, window = a_staged_transport()
    monkeypatch.setattr(SharedPool, "allocate", refuse)
    with pytest.raises(TransportUnavailable, match="no host memory to stage blocks in: no memory"):
        transport.register_pool(torch.zeros(SHAPE))
    assert window.fd == -1
    await transport.close()


async def test_the_window_is_freed_if_the_pool_cannot_be_registered() -> None:
    with closing(socket.create_server((HOST, 0))) as listener:
        transport, window = a_staged_transport(listener.getsockname()[1])
        with pytest.raises(OSError, match="cannot listen on port"):
            transport.register_pool(torch.zeros(SHAPE))
        assert window.fd == -1
        await transport.close()


def test_a_failed_copy_is_a_transfer_failure() -> None:
    pool = LocalPool.of(torch.zeros(4, 8), PoolIdentity("a", "b"))
    copy = StagingCopy(pool, torch.zeros(4, 32, dtype=torch.uint8))
    with pytest.raises(TransferFailed, match="copying blocks between GPU and host failed: "):
        copy.copy_in([0, 1], 32, 4)
