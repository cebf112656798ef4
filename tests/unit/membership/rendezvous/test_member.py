"""Members of groups, with a rendezvous that restarts."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from baton.membership.rendezvous.config import RendezvousSettings
from baton.membership.rendezvous.member import GroupRefused
from baton.protos import group_pb2, group_pb2_grpc
from baton.rpc.peers import Context
from tests.unit.membership.rendezvous.rendezvous_rig import (
    PATIENCE_S,
    members_of,
    names_of,
    rendezvous,
    until,
    view_of,
    wait_all,
)

NAMES = ["r-0", "r-1", "r-2", "r-3"]


@pytest.mark.parametrize("size", [2, 4])
async def test_a_group_begins_when_it_is_complete(size: int) -> None:
    names = NAMES[:size]
    async with rendezvous() as (_, address), members_of(address) as members:
        waiting = [members.join(name, size) for name in reversed(names[1:])]
        await asyncio.sleep(0.3)
        assert all(member.epoch == 0 for member in waiting)
        group = [members.join(names[0], size), *reversed(waiting)]
        assert await wait_all(group, names) == 1
        assert [view_of(member).rank for member in group] == list(range(size))


async def test_leaves_and_joins_take_effect_at_once() -> None:
    async with rendezvous() as (_, address), members_of(address) as members:
        group = [members.join(name, 3) for name in NAMES[:3]]
        first = await wait_all(group, NAMES[:3])
        begun_s = time.monotonic()
        await group[1].leave()
        assert time.monotonic() - begun_s < 0.5
        await wait_all([group[0], group[2]], ["r-0", "r-2"], first)
        assert group[1].epoch == first
        grown = [group[0], members.join("r-1", 3, life="2"), group[2], members.join("r-3", 3)]
        await wait_all(grown, NAMES)
        assert view_of(group[0]).members[1] == "r-1/2"


async def test_a_broken_epoch_is_followed_by_another_with_the_same_members() -> None:
    async with rendezvous() as (_, address), members_of(address) as members:
        group = [members.join(name, 4) for name in NAMES]
        first = await wait_all(group, NAMES)
        for member in group:
            member.report_broken(first, "gloo says\nno")
            member.report_broken(first, "and again")
        assert await wait_all(group, NAMES, first) == first + 1
        group[2].report_broken(first, "of an epoch that is over")
        await asyncio.sleep(0.2)
        assert {member.epoch for member in group} == {first + 1}


async def test_reports_of_broken_epochs_begin_few_epochs() -> None:
    async with rendezvous() as (_, address), members_of(address) as members:
        group = [members.join(name, 2) for name in NAMES[:2]]
        first = await wait_all(group, NAMES[:2])
        end_s = time.monotonic() + 1.0
        while time.monotonic() < end_s:
            for member in group:
                member.report_broken(member.epoch, "again")
            await asyncio.sleep(0.002)
        assert 3 <= group[0].epoch - first <= 21


async def test_all_members_receive_the_store() -> None:
    async with rendezvous() as (_, address), members_of(address) as members:
        group = [members.join(name, 2) for name in NAMES[:2]]
        await wait_all(group, NAMES[:2])
        seen = view_of(group[1])
        waiting = asyncio.create_task(asyncio.to_thread(group[1].wait, seen, 20))
        group[0].publish_store(seen.epoch, "127.0.0.1:5")
        found = await waiting
        assert found is not None
        assert (found.epoch, found.store) == (seen.epoch, "127.0.0.1:5")
        await until(lambda: view_of(group[0]).store == "127.0.0.1:5")


async def test_two_groups_are_independent() -> None:
    async with rendezvous() as (_, address), members_of(address) as members:
        left = [members.join(name, 2, group="left") for name in NAMES[:2]]
        right = [members.join(name, 2, group="right", fingerprint="other") for name in NAMES[1:3]]
        await wait_all(left, NAMES[:2])
        epoch = await wait_all(right, NAMES[1:3])
        await left[0].leave()
        await wait_all(left[1:], ["r-1"], 1)
        assert await wait_all(right, NAMES[1:3]) == epoch


async def test_32_joins_at_once_make_few_epochs() -> None:
    async with rendezvous() as (_, address), members_of(address) as members:
        names = [f"r-{number}" for number in range(32)]
        group = [members.join(name, 32) for name in names]
        assert await wait_all(group, names) == 1
        await asyncio.gather(*(member.leave() for member in group[16:]))
        assert await wait_all(group[:16], names[:16], 1) <= 4


async def test_a_refused_member_fails_with_the_reason() -> None:
    async with rendezvous() as (_, address), members_of(address) as members:
        group = [members.join("r-0", 1)]
        await wait_all(group, ["r-0"])
        wrong = members.join("r-1", 2)
        with pytest.raises(GroupRefused, match=r"refuses us: the size is 2, that of group g is 1"):
            await asyncio.wait_for(wrong.failed, 10)
        twin = members.join("r-0", 1, life="2")
        with pytest.raises(GroupRefused, match=r"another process has joined as r-0"):
            await asyncio.wait_for(group[0].failed, 10)
        await wait_all([twin], ["r-0"])


async def test_a_restarted_rendezvous_adopts_the_group() -> None:
    """No member has left: no epoch ends, and all receive a store that was opened meanwhile."""
    async with rendezvous() as (_, address):
        port = int(address.rpartition(":")[2])
    async with members_of(address) as members:
        async with rendezvous(port=port):
            group = [members.join(name, 4) for name in NAMES]
            epoch = await wait_all(group, NAMES)
        await asyncio.sleep(0.1)
        assert await wait_all(group, NAMES) == epoch, "they go on"
        group[0].publish_store(epoch, "127.0.0.1:5")
        async with rendezvous(port=port):
            await until(lambda: all(view_of(member).store == "127.0.0.1:5" for member in group))
            await asyncio.sleep(1.2)
            assert await wait_all(group, NAMES) == epoch
            await group[3].leave()
            assert await wait_all(group[:3], NAMES[:3]) == epoch + 1
        group[1].report_broken(epoch + 1, "while it is away")
        async with rendezvous(port=port):
            assert await wait_all(group[:3], NAMES[:3], epoch + 1) == epoch + 2


async def test_a_restarted_rendezvous_waits_for_members() -> None:
    settings = RendezvousSettings(return_s=0.6)
    async with rendezvous() as (_, address):
        port = int(address.rpartition(":")[2])
    async with members_of(address) as members:
        async with rendezvous(port=port):
            group = [members.join(name, 4) for name in NAMES]
            epoch = await wait_all(group, NAMES)
        await group[3].leave()
        async with rendezvous(settings, port):
            begun_s = time.monotonic()
            newcomer = members.join("r-9", 4)
            assert await wait_all([*group[:3], newcomer], [*NAMES[:3], "r-9"]) == epoch + 1
            assert time.monotonic() - begun_s > 0.5


class Forgetful(group_pb2_grpc.RendezvousServicer):
    """A rendezvous that ends when it receives a store, before it passes it on."""

    def __init__(self) -> None:
        self.has_store = asyncio.Event()

    async def Join(  # noqa: N802  # the service's name
        self, request_iterator: AsyncIterator[group_pb2.MemberMessage], context: Context
    ) -> AsyncIterator[group_pb2.GroupMessage]:
        join = (await anext(aiter(request_iterator))).join
        yield group_pb2.GroupMessage(welcome=group_pb2.Welcome(timeout_s=1))
        yield group_pb2.GroupMessage(epoch=group_pb2.Epoch(number=5, members=[join.life]))
        async for message in request_iterator:
            if message.HasField("store"):
                self.has_store.set()
                return


async def test_a_store_is_also_reported_to_the_next_rendezvous() -> None:
    server, forgetful = grpc.aio.server(), Forgetful()
    group_pb2_grpc.add_RendezvousServicer_to_server(forgetful, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with members_of(f"127.0.0.1:{port}") as members:
        member = members.join("r-0", 1)
        await until(lambda: member.epoch == 5)
        member.publish_store(5, "127.0.0.1:7")
        await asyncio.wait_for(forgetful.has_store.wait(), 20)
        await server.stop(None)
        assert view_of(member).store == ""
        async with rendezvous(port=port):
            await until(lambda: view_of(member).store == "127.0.0.1:7")
            assert member.epoch == 5


class Mute(group_pb2_grpc.RendezvousServicer):
    """A rendezvous that sends nothing but a welcome."""

    def __init__(self) -> None:
        self.num_joins = 0

    async def Join(  # noqa: N802  # the service's name
        self, request_iterator: AsyncIterator[group_pb2.MemberMessage], context: Context
    ) -> AsyncIterator[group_pb2.GroupMessage]:
        self.num_joins += 1
        yield group_pb2.GroupMessage(welcome=group_pb2.Welcome(timeout_s=0.1))
        await asyncio.sleep(PATIENCE_S)


async def test_a_silent_rendezvous_is_abandoned() -> None:
    server, mute = grpc.aio.server(), Mute()
    group_pb2_grpc.add_RendezvousServicer_to_server(mute, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with members_of(f"127.0.0.1:{port}") as members:
        members.join("r-0", 1)
        await until(lambda: mute.num_joins >= 3, PATIENCE_S / 2)
    await server.stop(None)


async def test_close_leaves_no_task_or_connection() -> None:
    tasks, threads = set(asyncio.all_tasks()), set(threading.enumerate())
    async with rendezvous() as (_, address), members_of(address) as members:
        group = [members.join(name, 3) for name in NAMES[:2]]  # a group that never begins
        group += [members.join(name, 2, group="h") for name in NAMES[:2]]
        await wait_all(group[2:], NAMES[:2])
        group[2].wake(view_of(group[2]).epoch, 1)  # to an address without a server
        assert names_of(group[0]) == []
    async with members_of("127.0.0.1:1") as nobodys:
        nobodys.join("r-0", 1)
        await asyncio.sleep(0.05)
    await until(lambda: set(asyncio.all_tasks()) <= tasks)
    await until(lambda: {each for each in threading.enumerate() if "grpc" not in each.name.lower()} <= threads)
