"""Wakes reach the other members of the epoch at once, and no process outside of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
import trustme

from baton.membership.rendezvous.epoch import Life
from baton.membership.rendezvous.member import GroupMember, Place
from baton.membership.rendezvous.rendezvous_address import FixedAddress
from baton.membership.rendezvous.wakes import GroupPeerService, Wakes
from baton.protos import group_pb2, group_pb2_grpc
from baton.rpc.peers import Channels
from baton.rpc.tls import MutualTls, Plaintext, Security
from tests.unit.membership.rendezvous.rendezvous_rig import rendezvous, until, wait_all
from tests.unit.rpc.test_tls import write


class Sleeper:
    """A worker's server that records wakes."""

    def __init__(self, name: str, address: str) -> None:
        self.life = Life(name, f"{name}-1", address)
        self.received: list[tuple[int, int]] = []
        self.is_full = False  # refuses wakes

    def note(self, epoch: int, round_number: int) -> bool:
        if not self.is_full:
            self.received.append((epoch, round_number))
        return not self.is_full


@asynccontextmanager
async def sleeper(name: str, security: Security = Plaintext(), host: str = "127.0.0.1") -> AsyncIterator[Sleeper]:  # noqa: B008  # stateless
    server = grpc.aio.server()
    port = security.bind(server, "127.0.0.1:0")
    one = Sleeper(name, f"{host}:{port}")
    group_pb2_grpc.add_GroupPeerServicer_to_server(GroupPeerService("g", one.life.incarnation, one.note), server)
    await server.start()
    try:
        yield one
    finally:
        await server.stop(None)


async def test_a_wake_reaches_all_others_of_the_newest_epoch() -> None:
    channels = Channels(Plaintext())
    async with rendezvous() as (_, address), sleeper("a") as a, sleeper("b") as b, sleeper("c") as c:
        place = FixedAddress(address)
        members = [GroupMember(place, Place("g", each.life, 3), Plaintext(), channels) for each in (a, b, c)]
        for member in members:
            member.start("f")
        epoch = await wait_all(members, ["a", "b", "c"])
        await asyncio.to_thread(members[1].wake, epoch, 7)  # as an engine does
        await until(lambda: a.received == c.received == [(epoch, 7)])
        members[1].wake(epoch - 1, 8)
        members[1].wake(epoch, 9)
        await until(lambda: a.received == c.received == [(epoch, 7), (epoch, 9)])
        assert b.received == []
        for member in members:
            await member.close()
    await channels.close()


async def test_a_member_that_does_not_respond_delays_no_other() -> None:
    """Only the newest wake waits for it."""
    channels = Channels(Plaintext())
    wakes = Wakes(channels, "g", timeout_s=60)
    async with sleeper("a") as a:
        dead = Life("dead", "dead-1", "127.0.0.1:1")
        for number in range(1000):
            wakes.send([dead, a.life], 1, number)
            if number % 10 == 0:
                await asyncio.sleep(0)
        await until(lambda: (1, 999) in a.received)
        assert len(a.received) < 1000
        await until(lambda: len(wakes._calls) == len(wakes._waiting) == 1)
        await wakes.close()
        assert not wakes._calls
    await channels.close()


async def test_a_wake_waits_for_a_server_that_is_starting() -> None:
    channels = Channels(Plaintext())
    wakes = Wakes(channels, "g", timeout_s=60)
    async with sleeper("a") as a:
        pass
    wakes.send([a.life], 1, 5)
    await asyncio.sleep(0.2)
    server = grpc.aio.server()
    group_pb2_grpc.add_GroupPeerServicer_to_server(GroupPeerService("g", a.life.incarnation, a.note), server)
    server.add_insecure_port(a.life.address)
    await server.start()
    await until(lambda: a.received == [(1, 5)])
    await wakes.close()
    await server.stop(None)
    await channels.close()


async def test_a_wake_is_retried_until_a_member_with_a_full_queue_accepts_it() -> None:
    channels = Channels(Plaintext())
    wakes = Wakes(channels, "g")
    async with sleeper("a") as a:
        a.is_full = True
        with pytest.raises(grpc.aio.AioRpcError, match="too many wakes are queued") as caught:
            await group_pb2_grpc.GroupPeerStub(channels.get(a.life.address)).Wake(
                group_pb2.WakeRequest(group="g", incarnation="a-1", epoch=1, round_number=1)
            )
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        wakes.send([a.life], 1, 2)
        await asyncio.sleep(0.1)
        assert a.received == []
        a.is_full = False
        await until(lambda: a.received == [(1, 2)])
        await until(lambda: not wakes._calls)
    await channels.close()


@pytest.mark.parametrize(("group", "incarnation"), [("h", "a-1"), ("g", "a-2"), ("g", "ü" * 1000)])
async def test_a_wake_for_another_group_or_incarnation_is_refused(group: str, incarnation: str) -> None:
    async with sleeper("a") as a, grpc.aio.insecure_channel(a.life.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="this is a-1 of group g") as caught:
            await group_pb2_grpc.GroupPeerStub(channel).Wake(
                group_pb2.WakeRequest(group=group, incarnation=incarnation, epoch=1, round_number=1)
            )
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert a.received == []


async def test_wakes_go_over_mutual_tls(tmp_path: Path) -> None:
    security = MutualTls(write(tmp_path, trustme.CA()))
    channels, strangers = Channels(security), Channels(Plaintext())
    wakes, strange = Wakes(channels, "g"), Wakes(strangers, "g")
    async with sleeper("a", security) as a:
        strange.send([a.life], 1, 1)
        wakes.send([a.life], 1, 2)
        await until(lambda: a.received)
        await until(lambda: not wakes._calls)
        await strange.close()
        assert a.received == [(1, 2)]
    await channels.close()
    await strangers.close()
