"""Streams of the rendezvous, with valid and invalid clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import pytest
import pytest_asyncio

from baton.membership.rendezvous.config import RendezvousSettings
from baton.membership.rendezvous.service import RendezvousService
from baton.protos import group_pb2
from baton.rpc.grpc_options import CHANNEL_OPTIONS
from tests.unit.membership.rendezvous.rendezvous_rig import Stream, join_message, life, rendezvous, until

SETTINGS = RendezvousSettings(timeout_s=60, max_groups=3, max_members=4)  # streams in these tests are silent for long
HASTY = replace(SETTINGS, timeout_s=0.5, forget_s=0.3)
INVALID, PRECONDITION = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
EPOCH = group_pb2.Epoch(number=1, members=[life("a")])


Served = tuple[RendezvousService, grpc.aio.Channel]


@asynccontextmanager
async def served_with(settings: RendezvousSettings) -> AsyncIterator[Served]:
    async with (
        rendezvous(settings) as (service, address),
        grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel,
    ):
        yield service, channel


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    async with served_with(SETTINGS) as found:
        yield found


@pytest_asyncio.fixture
async def hasty() -> AsyncIterator[Served]:
    async with served_with(HASTY) as found:
        yield found


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"group": ""}, "group is '', but must be 1 to 128 visible ASCII characters"),
        ({"group": "a b"}, "group is 'a b'"),
        ({"group": "x" * 5000}, "group is 'xxx"),
        ({"life": life("ü")}, "life.name is '\\xfc'"),
        ({"life": life("a", "")}, "life.incarnation is ''"),
        ({"life": life("a", address="nowhere")}, "life.address is 'nowhere', but must be host:port"),
        ({"life": life("a", address="h:" + "1" * 500)}, "life.address is 'h:111"),
        ({"fingerprint": ""}, "fingerprint is ''"),
        ({"size": 0}, "size is 0, but must be from 1 to 4"),
        ({"size": 5}, "size is 5, but must be from 1 to 4"),
        ({"last_epoch": group_pb2.Epoch()}, "last_epoch.number is 0"),
        ({"last_epoch": group_pb2.Epoch(number=(1 << 62) + 1)}, "last_epoch.number is"),
        ({"last_epoch": group_pb2.Epoch(number=1, members=[life("a")] * 5)}, "over the limit of 4"),
        ({"last_epoch": group_pb2.Epoch(number=1, members=[life("a")] * 2)}, "a name twice"),
        ({"last_epoch": group_pb2.Epoch(number=1, members=[life("")])}, "last_epoch.members.name is ''"),
        ({"last_epoch": group_pb2.Epoch(number=1, store="x")}, "last_epoch.store is 'x'"),
    ],
)
async def test_an_invalid_join_is_refused(served: Served, fields: dict[str, object], words: str) -> None:
    service, channel = served
    stream = Stream(channel)
    await stream.join(**fields)
    code, details = await stream.refusal()
    assert code is INVALID
    assert words in details
    assert len(details) < 500
    assert service.num_groups == 0


async def test_members_of_another_fingerprint_or_size_are_refused(served: Served) -> None:
    _, channel = served
    first = Stream(channel)
    await first.join()
    assert (await first.epoch()).number == 1
    for fields, words in (
        ({"fingerprint": "other"}, "the fingerprint is other, that of group g is f"),
        ({"size": 2}, "the size is 2, that of group g is 1"),
    ):
        stream = Stream(channel)
        await stream.join(life=life("b"), **fields)
        code, details = await stream.refusal()
        assert code is PRECONDITION
        assert words in details
    await first.call.done_writing()
    assert (await first.refusal())[0] is grpc.StatusCode.OK
    changed = Stream(channel)
    await changed.join(life=life("b"), fingerprint="other")
    assert (await changed.epoch()).number == 2, "those who are left alone decide"


async def test_the_first_message_must_be_a_join_and_no_other(served: Served) -> None:
    _, channel = served
    for first in (group_pb2.MemberMessage(), group_pb2.MemberMessage(store=group_pb2.StoreReady(epoch=1))):
        stream = Stream(channel)
        await stream.call.write(first)
        assert await stream.refusal() == (INVALID, "the first message must be a join")
    stream = Stream(channel)
    await stream.join()
    await stream.join()
    assert await stream.refusal() == (INVALID, "only the first message may be a join")
    stream = Stream(channel)
    await stream.join()
    await stream.call.write(group_pb2.MemberMessage(store=group_pb2.StoreReady(epoch=1, address="nowhere")))
    code, details = await stream.refusal()
    assert code is INVALID
    assert "store.address is 'nowhere'" in details


async def test_a_stream_without_a_join_ends(hasty: Served) -> None:
    _, channel = hasty
    assert await Stream(channel).refusal() == (grpc.StatusCode.DEADLINE_EXCEEDED, "no join message in time")


async def test_malformed_messages_are_refused(served: Served) -> None:
    _, channel = served
    method = f"/{group_pb2.DESCRIPTOR.services_by_name['Rendezvous'].full_name}/Join"
    for messages in ([b"\xff\xff"], [join_message().SerializeToString(), b"\xff\xff"]):
        call = channel.stream_stream(method)()
        for message in messages:
            await call.write(message)
        with pytest.raises(grpc.aio.AioRpcError, match="message") as caught:
            async for _ in call:
                pass
        assert caught.value.code() is INVALID


async def test_numbers_are_bounded(served: Served) -> None:
    _, channel = served
    streams = [Stream(channel) for _ in range(4)]
    for number, stream in enumerate(streams):
        await stream.join(life=life(f"a-{number}"), size=4)
    assert len((await streams[0].epoch()).members) == 4
    fifth = Stream(channel)
    await fifth.join(life=life("b"), size=4)
    assert await fifth.refusal() == (grpc.StatusCode.RESOURCE_EXHAUSTED, "group g is full with 4 members")
    for group in ("h", "i"):
        stream = Stream(channel)
        await stream.join(group=group)
        await stream.epoch()
        stream.call.cancel()
    fourth = Stream(channel)
    await fourth.join(group="j")
    assert await fourth.refusal() == (grpc.StatusCode.RESOURCE_EXHAUSTED, "the rendezvous is full with 3 groups")


async def test_groups_without_members_are_dropped(hasty: Served) -> None:
    service, channel = hasty
    kept, left = Stream(channel), Stream(channel)
    await kept.join()
    async with beating(kept):
        await left.join(group="h")
        await left.epoch()
        assert service.num_groups == 2
        left.call.cancel()
        await until(lambda: service.num_groups == 1)


@asynccontextmanager
async def beating(*streams: Stream) -> AsyncIterator[None]:
    """Send heartbeats for members."""

    async def beat() -> None:
        while True:
            for stream in streams:
                await stream.call.write(group_pb2.MemberMessage())
            await asyncio.sleep(0.1)

    task = asyncio.create_task(beat())
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_only_the_first_member_opens_the_store_of_the_newest_epoch(served: Served) -> None:
    _, channel = served
    first, second = Stream(channel), Stream(channel)
    await first.join(life=life("a"), size=2)
    await second.join(life=life("b"), size=2)
    assert (await first.epoch()).number == (await second.epoch()).number == 1
    for stream, epoch, address in ((second, 1, "h:1"), (first, 2, "h:2"), (first, 1, "h:3")):
        await stream.call.write(group_pb2.MemberMessage(store=group_pb2.StoreReady(epoch=epoch, address=address)))
        await stream.read()
    epoch = await second.epoch()
    assert (epoch.number, epoch.store) == (1, "h:3")


async def test_a_new_incarnation_replaces_a_member_permanently(served: Served) -> None:
    _, channel = served
    old, new = Stream(channel), Stream(channel)
    await old.join(life=life("a", "1"))
    assert (await old.epoch()).number == 1
    await new.join(life=life("a", "2"))
    assert (await new.epoch()).members == [life("a", "2")]
    text = "another process has joined as a; each member needs a unique name"
    assert await old.refusal() == (PRECONDITION, text)
    again = Stream(channel)
    await again.join(life=life("a", "1"))
    assert await again.refusal() == (PRECONDITION, text)


async def test_a_member_on_a_new_stream_is_the_same_member(served: Served) -> None:
    _, channel = served
    old, new = Stream(channel), Stream(channel)
    await old.join()
    await old.epoch()
    await new.join(last_epoch=EPOCH)
    assert (await new.epoch()).number == 1
    assert (await old.refusal())[0] is grpc.StatusCode.ABORTED
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(new.epoch(), 0.3)


async def test_a_new_epoch_is_greater_than_any_that_a_member_has_seen(served: Served) -> None:
    _, channel = served
    stayer, traveller = Stream(channel), Stream(channel)
    await stayer.join()
    assert (await stayer.epoch()).number == 1
    known = group_pb2.Epoch(number=9, members=[life("b"), life("c")], store="h:1")
    await traveller.join(life=life("b"), last_epoch=known)
    while (epoch := await stayer.epoch()).number < 10:
        assert epoch.number == 1
    assert epoch == group_pb2.Epoch(number=10, members=[life("a"), life("b")])


async def test_silent_members_are_removed(hasty: Served) -> None:
    _, channel = hasty
    silent, alive = Stream(channel), Stream(channel)
    await silent.join(life=life("a"), size=2)
    await alive.join(life=life("b"), size=2)
    async with beating(alive):
        assert await silent.refusal() == (grpc.StatusCode.ABORTED, "no heartbeat from the member for 0.5 s")
        epochs = [await alive.epoch(), await alive.epoch()]
    assert [len(epoch.members) for epoch in epochs] == [2, 1]
