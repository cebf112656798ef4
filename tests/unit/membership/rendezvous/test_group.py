"""The start of a group's epochs when the rendezvous itself was delayed."""

import asyncio

import pytest

from baton.membership.rendezvous.config import RendezvousSettings
from baton.membership.rendezvous.epoch import Epoch, epoch_from_proto, epoch_to_proto
from baton.membership.rendezvous.group import Group
from baton.membership.rendezvous.join import read_join
from baton.membership.rendezvous.member_session import MemberSession
from tests.unit.membership.rendezvous.rendezvous_rig import join_message, life

SETTINGS = RendezvousSettings(timeout_s=0.4, return_s=0.5)
SETTLED_S = 0.2  # enough for an epoch without a wait to begin


def admit(group: Group, name: str, last: Epoch | None = None) -> MemberSession:
    message = join_message(life=life(name), size=2).join
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


async def test_a_closed_group_begins_no_epoch() -> None:
    group = Group("g", SETTINGS)
    sessions = [admit(group, "a"), admit(group, "b")]
    group.close()
    for session in sessions:
        group.remove(session)
        assert str(session.end) == "the rendezvous is shutting down"
        assert [message async for message in session.messages()] == []
