"""Two-sided reads, over gloo: what the conformance suite does not ask of every transport."""

import asyncio
import logging
import threading
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from kvtransfer import endpoint, nccl, pair_group, pair_making, pair_owner, pair_seats
from kvtransfer.auto import AutoTransport, Backend
from kvtransfer.base import KVTransport, PoolIdentity
from kvtransfer.errors import PeerLost, PeerRefused, TransferDeadline, TransferFailed, TransportUnavailable
from kvtransfer.nccl import CHUNK_BYTES, Endpoint, PairTransport
from kvtransfer.pair_group import BLOCKING_WAIT, MAX_CTAS, PairGroup, load_kernels
from kvtransfer.pair_seats import PairSeats
from kvtransfer.quarantine import Quarantine
from kvtransfer.tcp import TcpTransport
from kvtransfer.tcp_connection import open_connection
from tests.unit.kvtransfer.kv_peers import CHUNK_TIMEOUT_S, HOST, fill, holds
from tests.unit.kvtransfer.read_rig import LARGE_SHAPE, PATIENCE_S, UNTOUCHED, soon, until


class Side:
    """A pool in host memory, read over gloo."""

    def __init__(self, seed: int, connect_deadline_s: float = 15.0) -> None:
        identity = PoolIdentity(uuid.uuid4().hex, "model")
        self.pool = torch.full(LARGE_SHAPE, UNTOUCHED)
        if seed:
            fill(self.pool, seed)
        self.transport = PairTransport(
            identity, HOST, None, connect_deadline_s, backend="gloo", chunk_timeout_s=CHUNK_TIMEOUT_S
        )
        self.description = self.transport.register_pool(self.pool)


@asynccontextmanager
async def sides(connect_deadline_s: float = 15.0) -> AsyncIterator[tuple[Side, Side]]:
    both = Side(0, connect_deadline_s), Side(1, connect_deadline_s)
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


def failing_once(method: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the first call of a group's method fail, before it has done anything."""
    real, errors = getattr(PairGroup, method), [error]

    def fail(self: PairGroup, *args: object) -> object:
        if errors:
            raise errors.pop()
        return real(self, *args)

    monkeypatch.setattr(PairGroup, method, fail)


@pytest.mark.parametrize("method", ["scatter", "receive"])
async def test_after_an_error_nobody_had_thought_of_the_next_read_gets_its_own_blocks(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        failing_once(method, torch.OutOfMemoryError("CUDA out of memory"), monkeypatch)
        with pytest.raises(torch.OutOfMemoryError):
            await ours.transport.read(peer, list(range(32)), list(range(32)), PATIENCE_S)
        assert peer not in ours.transport.choices  # chunks that nobody takes are on their way over this one
        await ours.transport.connect(theirs.description)
        ours.pool.fill_(UNTOUCHED)
        await ours.transport.read(peer, list(range(40, 48)), list(range(8)), PATIENCE_S)
        assert all(holds(ours.pool, block, 1, 40 + block) for block in range(8))
        assert bool((ours.pool[8:] == UNTOUCHED).all())


@pytest.mark.parametrize("method", ["scatter", "receive"])
async def test_after_an_error_of_ours_the_communicator_is_kept_once_all_has_come(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        group = ours.transport._connections.get(peer).group
        failing_once(method, TransferFailed("no memory"), monkeypatch)
        with pytest.raises(TransferFailed, match="no memory"):
            await ours.transport.read(peer, list(range(32)), list(range(32)), PATIENCE_S)
        ours.pool.fill_(UNTOUCHED)
        await ours.transport.read(peer, list(range(40, 48)), list(range(8)), PATIENCE_S)
        assert all(holds(ours.pool, block, 1, 40 + block) for block in range(8))
        assert ours.transport._connections.get(peer).group is group


async def test_what_fails_in_torch_is_an_error_of_transfer() -> None:
    async with sides() as (ours, theirs):
        peer = await ours.transport.connect(theirs.description)
        group, rows = ours.transport._connections.get(peer).group, ours.pool.view(torch.uint8)
        with pytest.raises(TransferFailed, match="receiving blocks failed: "):
            group.receive(-1, 8)
        with pytest.raises(TransferFailed, match="copying blocks that were received failed: "):
            group.scatter(torch.zeros(1, 8, dtype=torch.uint8), rows, [0])


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """As NCCL when a firewall drops what it sends: making a communicator does not end, on either side."""
    none_is_made()  # for a peer of an earlier test
    over = threading.Event()

    def wait(*_args: object) -> None:
        over.wait()
        raise RuntimeError("it is over")

    with monkeypatch.context() as patched:
        patched.setattr(pair_group, "_gloo", wait)
        yield over
        over.set()
    none_is_made()


def none_is_made() -> None:
    """Returns once no communicator is being made."""
    end_s = time.monotonic() + PATIENCE_S
    while num_making():
        assert time.monotonic() < end_s, "a thread is left"
        time.sleep(0.001)


def num_making() -> int:
    return sum(thread.name == "baton-kv-pair" for thread in threading.enumerate())


async def test_a_communicator_that_is_not_made_in_time_is_for_another_transport(stuck: threading.Event) -> None:
    async with sides(connect_deadline_s=1.5) as (ours, theirs):
        with pytest.raises(TransportUnavailable, match=r"no communicator with peer .* within 1 s"):
            await ours.transport.connect(theirs.description)
        for _ in range(3):  # and is not tried again
            with pytest.raises(TransportUnavailable, match="within"):
                await ours.transport.connect(theirs.description)
        assert num_making() == 2
        stuck.set()
        await until(lambda: num_making() == 0)


async def test_auto_goes_on_when_no_communicator_comes(stuck: threading.Event) -> None:
    async def side(seed: int) -> tuple[KVTransport, torch.Tensor]:
        pool, quarantine = torch.full((8, 512), UNTOUCHED), Quarantine()
        if seed:
            fill(pool, seed)
        identity = PoolIdentity(uuid.uuid4().hex, "model")
        pair = PairTransport(identity, HOST, quarantine, 1.5, backend="gloo")
        return AutoTransport(
            [Backend("gloo", pair), Backend("tcp", TcpTransport(identity, HOST, quarantine))], quarantine
        ), pool

    (ours, pool), (theirs, source) = await side(0), await side(1)
    described = theirs.register_pool(source)
    ours.register_pool(pool)
    peer = await ours.connect(described)
    assert ours.choices[peer].transport == "tcp"
    assert "gloo: no communicator with peer" in ours.choices[peer].reason
    await ours.read(peer, [3], [4], PATIENCE_S)
    assert holds(pool, 4, 1, 3)
    stuck.set()
    await ours.close()
    await theirs.close()


async def test_an_owner_waits_for_no_reader_that_has_gone(stuck: threading.Event) -> None:
    async with sides() as (ours, theirs):
        address, local = endpoint.decode(Endpoint, theirs.description, "gloo"), ours.transport._require_pool()
        listener = theirs.transport._listener
        assert listener is not None
        for _ in range(3):
            sock = await open_connection(address.host, address.port, address.key, local, theirs.description)
            assert len(await asyncio.get_running_loop().sock_recv(sock, 4)) == 4
            sock.close()
        await until(lambda: len(listener._tasks) == 1)  # it accepts
        assert not stuck.is_set()


async def test_an_owner_makes_no_more_communicators_than_it_can(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_making, "MAX_MAKING", 1)
    async with sides() as (ours, theirs):
        reading = asyncio.create_task(ours.transport.connect(theirs.description))
        await until(lambda: num_making() == 2)
        another = Side(0)
        with pytest.raises(TransportUnavailable, match="has no communicator to spare"):
            await another.transport.connect(theirs.description)
        stuck.set()
        with pytest.raises((TransportUnavailable, PeerLost)):
            await reading
        await another.transport.close()


async def test_an_owner_without_a_store_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise RuntimeError("no store")

    async with sides() as (ours, theirs):
        with monkeypatch.context() as patched:
            patched.setattr(pair_owner, "own_store", refuse)
            with pytest.raises(TransportUnavailable, match="has no communicator to spare"):
                await ours.transport.connect(theirs.description)
        peer = await ours.transport.connect(theirs.description)
        await ours.transport.read(peer, [5], [6], PATIENCE_S)


async def test_a_port_that_there_is_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say(_sock: object) -> int:
        return 70000

    async with sides() as (ours, theirs):
        monkeypatch.setattr(nccl, "receive_word", say)
        with pytest.raises(PeerRefused, match="listens on port 70000"):
            await ours.transport.connect(theirs.description)


async def test_an_idle_communicator_makes_room_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_seats, "IDLE_S", 0.0)
    async with sides() as (ours, theirs), sides() as (others, more):
        ours.transport._seats = PairSeats(1)
        assert theirs.transport._owner is not None
        theirs.transport._owner.seats = PairSeats(1)
        first = await ours.transport.connect(theirs.description)
        second = await ours.transport.connect(more.description)
        assert set(ours.transport.choices) == {second}
        await ours.transport.connect(theirs.description)
        assert set(ours.transport.choices) == {first}
        await ours.transport.read(first, [5], [6], PATIENCE_S)
        again = await others.transport.connect(theirs.description)  # which has a seat for one reader
        await others.transport.read(again, [7], [8], PATIENCE_S)
        assert holds(others.pool, 8, 1, 7)
        await until(lambda: not ours.transport.choices)


async def test_a_communicator_that_does_not_end_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pair_making, "END_S", 0.1)
    over, real = threading.Event(), PairGroup.abort
    async with sides() as (ours, theirs):
        await ours.transport.connect(theirs.description)
        with monkeypatch.context() as patched:
            patched.setattr(PairGroup, "abort", lambda self: over.wait() and real(self))
            await soon(ours.transport.close())
        assert "1 communicators do not end" in caplog.text
        over.set()


def test_an_abort_that_fails_is_said(caplog: pytest.LogCaptureFixture) -> None:
    group = PairGroup.__new__(PairGroup)

    def abort() -> None:
        raise RuntimeError("NCCL error: unhandled system error\nframes")

    group._group = SimpleNamespace(abort=abort)
    group.abort()
    group.abort()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage() == "a communicator does not end: NCCL error: unhandled system error"


@pytest.mark.parametrize("said", ["0", "false", "", "perhaps"])
def test_nccl_is_not_used_where_torch_would_end_the_process(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "nccl_type", lambda: None)
    monkeypatch.setenv(BLOCKING_WAIT, said)
    with pytest.raises(TransportUnavailable, match=r"TORCH_NCCL_BLOCKING_WAIT is .*leave it out, or set 1"):
        PairTransport(PoolIdentity("a", "b"), HOST)
    monkeypatch.setenv(BLOCKING_WAIT, "Yes")
    PairTransport(PoolIdentity("a", "b"), HOST)


def test_a_communicator_over_nccl_takes_little_of_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What NCCL is told; there may be no GPU to tell it on."""
    made: list[SimpleNamespace] = []

    class Group:
        def __init__(self, _store: object, rank: int, size: int, options: SimpleNamespace) -> None:
            assert (rank, size) == (1, 2)
            made.append(options)

        @staticmethod
        def Options(is_high_priority_stream: bool = False) -> SimpleNamespace:  # noqa: N802
            return SimpleNamespace(is_high_priority_stream=is_high_priority_stream, config=SimpleNamespace())

        def eager_connect_single_device(self, device: torch.device) -> None:
            assert device.index == 1

    monkeypatch.setattr(pair_group, "nccl_type", lambda: Group)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    store = torch.distributed.HashStore()
    pair_group._nccl(store, 1, HOST, torch.device("cuda", 1), timedelta(seconds=3))
    (options,) = made
    assert options.is_high_priority_stream
    assert options.config.max_ctas == MAX_CTAS
    assert options._timeout == timedelta(seconds=3)


def test_loading_kernels_changes_nothing() -> None:
    rows = torch.arange(64, dtype=torch.uint8).view(4, 16)
    load_kernels(rows)
    assert rows.flatten().tolist() == list(range(64))
