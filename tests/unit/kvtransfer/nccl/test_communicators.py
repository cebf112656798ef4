"""Creation of communicators over gloo: deadlines, limits and aborts."""

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
import torch

from baton.kvtransfer import endpoint
from baton.kvtransfer.base import KVTransport, PeerId, PoolIdentity
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable
from baton.kvtransfer.nccl import communicator, owner
from baton.kvtransfer.nccl import communicators as communicator_factory
from baton.kvtransfer.nccl import communicators as communicator_limit
from baton.kvtransfer.nccl import transport as nccl
from baton.kvtransfer.nccl.communicator import PairGroup
from baton.kvtransfer.nccl.communicators import CommunicatorLimit
from baton.kvtransfer.nccl.transport import Endpoint, PairBackend
from baton.kvtransfer.tcp.connection import open_connection
from baton.kvtransfer.tcp.transport import TcpBackend
from baton.kvtransfer.transport import Transport
from tests.unit.kvtransfer.kv_peers import HOST, fill, holds
from tests.unit.kvtransfer.pair_rig import Side, sides
from tests.unit.kvtransfer.read_rig import PATIENCE_S, UNTOUCHED, soon, until


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Make the creation of communicators hang on both sides, as NCCL does if a firewall drops its packets."""
    none_is_made()  # in case a peer of an earlier test still creates one
    over = threading.Event()

    def wait(*_args: object) -> None:
        over.wait()
        raise RuntimeError("it is over")

    with monkeypatch.context() as patched:
        patched.setattr(communicator, "_gloo", wait)
        yield over
        over.set()
    none_is_made()


def none_is_made() -> None:
    """Wait until no communicator is being created."""
    end_s = time.monotonic() + PATIENCE_S
    while num_making():
        assert time.monotonic() < end_s, "a thread is still running"
        time.sleep(0.001)


def num_making() -> int:
    return sum(thread.name == "baton-kv-pair" for thread in threading.enumerate())


async def test_a_communicator_that_is_late_makes_the_transport_unavailable(stuck: threading.Event) -> None:
    async with sides(connect_deadline_s=1.5) as (ours, theirs):
        with pytest.raises(TransportUnavailable, match=r"no communicator with peer .* within 1 s"):
            await ours.transport.connect(theirs.description)
        for _ in range(3):  # without trying again
            with pytest.raises(TransportUnavailable, match="within"):
                await ours.transport.connect(theirs.description)
        assert num_making() == 2
        stuck.set()
        await until(lambda: num_making() == 0)


async def test_auto_uses_the_next_transport_if_no_communicator_is_created(stuck: threading.Event) -> None:
    async def side(seed: int) -> tuple[KVTransport, torch.Tensor]:
        pool = torch.full((8, 512), UNTOUCHED)
        if seed:
            fill(pool, seed)
        identity = PoolIdentity(uuid.uuid4().hex, "model")
        return Transport(identity, [PairBackend(HOST, 0, 1.5, name="gloo"), TcpBackend(HOST)]), pool

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


async def test_an_owner_does_not_wait_for_disconnected_readers(stuck: threading.Event) -> None:
    async with sides() as (ours, theirs):
        address, local = endpoint.decode(Endpoint, theirs.description, "gloo"), ours.transport._require_pool()
        listener = theirs.backend._listener
        assert listener is not None
        for _ in range(3):
            sock = await open_connection(address.host, address.port, address.key, local, theirs.description)
            assert len(await asyncio.get_running_loop().sock_recv(sock, 4)) == 4
            sock.close()
        await until(lambda: len(listener._tasks) == 1)  # only the accepting task is left
        assert not stuck.is_set()


async def test_an_owner_limits_the_communicators_being_created(
    stuck: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicator_factory, "MAX_MAKING", 1)
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


async def test_an_owner_that_cannot_open_a_store_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise RuntimeError("no store")

    async with sides() as (ours, theirs):
        with monkeypatch.context() as patched:
            patched.setattr(owner, "own_store", refuse)
            with pytest.raises(TransportUnavailable, match="has no communicator to spare"):
                await ours.transport.connect(theirs.description)
        peer = await ours.transport.connect(theirs.description)
        await ours.transport.read(peer, [5], [6], PATIENCE_S)


async def test_an_impossible_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say(_sock: object) -> int:
        return 70000

    async with sides() as (ours, theirs):
        monkeypatch.setattr(nccl, "receive_word", say)
        with pytest.raises(PeerRefused, match="listen on port 70000"):
            await ours.transport.connect(theirs.description)


async def test_a_failed_communicator_makes_the_transport_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sides() as (ours, theirs):

        def refuse(*_args: object) -> PairGroup:
            raise RuntimeError("ncclInvalidUsage: Duplicate GPU detected\nC++ frames")

        with monkeypatch.context() as patched:
            patched.setattr(nccl, "PairGroup", refuse)
            with pytest.raises(TransportUnavailable, match=r"no communicator with peer .*Duplicate GPU detected$"):
                await ours.transport.connect(theirs.description)
        assert not ours.transport.choices
        peer = await ours.transport.connect(theirs.description)  # the owner is unaffected
        await ours.transport.read(peer, [5], [6], PATIENCE_S)
        assert holds(ours.pool, 6, 1, 5)


async def connected(reader: Side, owner: Side) -> PeerId:
    """Connect as soon as the other side has ended its last read."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await reader.transport.connect(owner.description)
            except TransportUnavailable:
                await asyncio.sleep(0.01)


async def test_an_idle_communicator_is_evicted_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(communicator_limit, "IDLE_S", 0.0)
    async with sides() as (ours, theirs), sides() as (others, more):
        ours.backend._limit = CommunicatorLimit(1)
        assert theirs.backend._owner is not None
        theirs.backend._owner.limit = CommunicatorLimit(1)
        first = await ours.transport.connect(theirs.description)
        second = await ours.transport.connect(more.description)
        assert set(ours.transport.choices) == {second}
        await ours.transport.connect(theirs.description)
        assert set(ours.transport.choices) == {first}
        await ours.transport.read(first, [5], [6], PATIENCE_S)
        again = await connected(others, theirs)  # whose limit is one reader
        await others.transport.read(again, [7], [8], PATIENCE_S)
        assert holds(others.pool, 8, 1, 7)
        await until(lambda: not ours.transport.choices)


async def test_a_hanging_abort_does_not_block_close(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(communicator_factory, "END_S", 0.1)
    over, real = threading.Event(), PairGroup.abort
    async with sides() as (ours, theirs):
        await ours.transport.connect(theirs.description)
        with monkeypatch.context() as patched:
            patched.setattr(PairGroup, "abort", lambda self: over.wait() and real(self))
            await soon(ours.transport.close())
        assert "the abort of 1 communicators hangs" in caplog.text
        over.set()
