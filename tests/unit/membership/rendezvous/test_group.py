"""A group's members and epochs when the rendezvous itself was delayed or has restarted."""

import asyncio
from dataclasses import replace

import pytest

from baton.membership.rendezvous.config import RendezvousSettings
from baton.membership.rendezvous.epoch import Epoch, epoch_from_proto, epoch_to_proto
from baton.membership.rendezvous.group import Group
from baton.membership.rendezvous.join import Refused, read_join
from baton.membership.rendezvous.member_session import MemberSession
from tests.unit.membership.rendezvous.rendezvous_rig import join_message, life

SETTINGS = RendezvousSettings(timeout_s=0.4, return_s=0.5)
SETTLED_S = 0.2  # enough for an epoch without a wait to begin


def admit(group: Group, name: str, last: Epoch | None = None, **fields: object) -> MemberSession:
    message = join_message(**{"life": life(name), "size": 2, **fields}).join
    if last is not None:
        message.last_epoch.CopyFrom(epoch_to_proto(last))
    return group.admit(read_join(message, SETTINGS))


async def shown(session: MemberSession) -> Epoch:
    """Return the newest epoch, which has not been sent yet."""
    async with asyncio.timeout(10):
        async for message in session.messages():
            if message.HasField("epoch"):
                return epoch_from_proto(message.epoch)
    raise AssertionError("the session is closed")


async def test_a_delayed_rendezvous_removes_no_members() -> None:
    group = Group("g", SETTINGS)
    sessions = [admit(group, "a"), admit(group, "b")]
    clock = asyncio.get_running_loop().time
    suspended_s = clock()
    await asyncio.sleep(SETTINGS.timeout_s + 0.1)
    group.remove_silent(late_s=clock() - suspended_s)
    group.remove_silent(late_s=0)
    assert [session.end for session in sessions] == [None, None]
    await asyncio.sleep(SETTINGS.timeout_s + 0.1)
    group.remove_silent(late_s=0)
    assert all("no heartbeat" in str(session.end) for session in sessions)
    group.close()


@pytest.mark.parametrize("is_seen_first", [False, True])
async def test_a_member_that_left_a_suspended_rendezvous_may_return(is_seen_first: bool) -> None:
    """The leave may be seen before or after the rendezvous notices its own delay."""
    group = Group("g", SETTINGS)
    gone, stayed = admit(group, "a"), admit(group, "b")
    first = await shown(stayed)
    if is_seen_first:
        group.remove_silent(late_s=5)
    group.remove(gone)
    if not is_seen_first:
        group.remove_silent(late_s=5)
    await asyncio.sleep(SETTLED_S)
    back = admit(group, "a", first)
    assert await shown(back) == first
    await asyncio.sleep(0.6)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await shown(stayed)
    group.close()


async def test_a_member_that_does_not_return_is_removed() -> None:
    group = Group("g", SETTINGS)
    gone, stayed = admit(group, "a"), admit(group, "b")
    first = await shown(stayed)
    group.remove_silent(late_s=5)
    begun_s = asyncio.get_running_loop().time()
    group.remove(gone)
    epoch = await shown(stayed)
    assert asyncio.get_running_loop().time() - begun_s > 0.4
    assert (epoch.number, epoch.lives) == (first.number + 1, (stayed.life,))
    group.close()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"fingerprint": "other"}, "the fingerprint is other, that of group g is f: model"),
        ({"size": 3}, "the size is 3, that of group g is 2"),
    ],
)
async def test_new_members_that_do_not_match_yield_to_members_of_an_epoch(fields: dict[str, object], text: str) -> None:
    """After a restart of the rendezvous, in whatever order its clients join."""
    before = Group("g", SETTINGS)
    admit(before, "b")
    known = await shown(admit(before, "a"))
    before.close()
    group = Group("g", SETTINGS)
    intruder = admit(group, "c", **fields)
    returned = [admit(group, "a", known), admit(group, "b", known)]
    assert text in str(intruder.end)
    assert [await shown(session) for session in returned] == [known, known]
    with pytest.raises(Refused, match=text.split(",")[0]):
        admit(group, "c", **fields)
    with pytest.raises(Refused, match=text.split(",")[0]):
        admit(group, "d", replace(known, number=known.number + 1), **fields)
    assert group.num_members == 2
    group.close()


async def test_members_of_an_epoch_do_not_yield_to_each_other() -> None:
    """A group without an epoch whose members know epochs that are too old."""
    group = Group("g", SETTINGS)
    gone, last = admit(group, "a"), admit(group, "b")
    old = await shown(last)
    group.remove(gone)
    newest = await shown(last)
    group.remove(last)
    stayed = admit(group, "a", old)
    with pytest.raises(Refused, match="the fingerprint is other"):
        admit(group, "c", newest, fingerprint="other")
    assert stayed.end is None
    group.close()


async def test_a_closed_group_begins_no_epoch() -> None:
    group = Group("g", SETTINGS)
    sessions = [admit(group, "a"), admit(group, "b")]
    group.close()
    for session in sessions:
        group.remove(session)
        assert str(session.end) == "the rendezvous is shutting down"
        assert [message async for message in session.messages()] == []
