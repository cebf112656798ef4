"""Making communicators, over gloo: in time, no more than there is room for, and to their end."""

import asyncio
import threading
import time
import uuid
from collections.abc import Iterator

import pytest
import torch

from baton.kvtransfer import endpoint
from baton.kvtransfer.auto import AutoTransport, Backend
from baton.kvtransfer.base import KVTransport, PoolIdentity
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable
from baton.kvtransfer.nccl import communicator as pair_group
from baton.kvtransfer.nccl import communicator_factory as pair_making
from baton.kvtransfer.nccl import communicator_limit as pair_seats
from baton.kvtransfer.nccl import owner as pair_owner
from baton.kvtransfer.nccl import transport as nccl
from baton.kvtransfer.nccl.communicator import PairGroup
from baton.kvtransfer.nccl.communicator_limit import CommunicatorLimit
from baton.kvtransfer.nccl.transport import Endpoint, PairTransport
from baton.kvtransfer.quarantine import Quarantine
from baton.kvtransfer.tcp.connection import open_connection
from baton.kvtransfer.tcp.transport import TcpTransport
from tests.unit.kvtransfer.kv_peers import HOST, fill, holds
from tests.unit.kvtransfer.pair_rig import Side, sides
from tests.unit.kvtransfer.read_rig import PATIENCE_S, UNTOUCHED, soon, until


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


async def test_an_idle_communicator_makes_room_on_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_seats, "IDLE_S", 0.0)
    async with sides() as (ours, theirs), sides() as (others, more):
        ours.transport._seats = CommunicatorLimit(1)
        assert theirs.transport._owner is not None
        theirs.transport._owner.seats = CommunicatorLimit(1)
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
