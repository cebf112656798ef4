"""The rendezvous with arbitrary streams, and members with arbitrary wakes.

Other groups are undisturbed, new members are accepted as before, and a member's engine receives a bounded number of
wakes.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import grpc
import pytest
from hypothesis import strategies as st

from baton.membership.rendezvous.config import RendezvousSettings
from baton.protos.group_pb2 import DESCRIPTOR, Epoch, Life, MemberMessage, WakeRequest
from baton.worker.expert_group import MAX_QUEUED_WAKES
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.grpc_calls import call
from tests.fuzz.grpc.messages import messages, wire
from tests.unit.membership.rendezvous.rendezvous_rig import join_message, members_of, names_of, rendezvous, wait_all
from tests.unit.worker.busy_member import busy_member

T = TypeVar("T")

JOIN = f"/{DESCRIPTOR.services_by_name['Rendezvous'].full_name}/Join"
WAKE = f"/{DESCRIPTOR.services_by_name['GroupPeer'].full_name}/Wake"
BYSTANDERS = ["r-0", "r-1"]
SETTINGS = RendezvousSettings(timeout_s=30, max_groups=20, max_members=3, forget_s=0.1)
names = st.sampled_from(["a", "b", "c", "d", "g", "ü", "x" * 200, "a-1"])
lives = messages(Life, {"name": names, "incarnation": names, "address": st.sampled_from(["h:1", "h:2", "", "h:x"])})
LIKELY = {
    "group": names,
    "life": lives,
    "fingerprint": st.sampled_from(["f", "f", "f", "other", ""]),
    "size": st.sampled_from([1, 1, 2, 0, 1 << 31]),
    "last_epoch": messages(Epoch, {"members": st.lists(lives, max_size=4)}),
    "address": st.sampled_from(["h:1", "h:2", "", "h:x"]),
}


class Rig:
    """A rendezvous with one group that the fuzzers must not disturb."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.run(self._start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` on the event loop and return its result."""
        return self._runner.run(work)

    async def _start(self) -> None:
        _, address = await self._stack.enter_async_context(rendezvous(SETTINGS))
        self.channel = await self._stack.enter_async_context(grpc.aio.insecure_channel(address))
        self._members = await self._stack.enter_async_context(members_of(address))
        self._bystanders = [self._members.join(name, 2, group="bystanders") for name in BYSTANDERS]
        await wait_all(self._bystanders, BYSTANDERS)

    def check_serves(self) -> None:
        """Fail unless the undisturbed group is intact and a new group can form."""

        async def check() -> None:
            assert [(each.epoch, names_of(each)) for each in self._bystanders] == [(1, BYSTANDERS)] * 2
            await asyncio.sleep(0.2)
            newcomer = self._members.join("new", 1, group="new")
            await wait_all([newcomer], ["new"])

        self.run(check())

    def close(self) -> None:
        """Close the rendezvous and its members."""
        self.run(self._stack.aclose())
        self._runner.close()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def test_any_join_stream_disturbs_no_group(fuzzing: Fuzzing, rig: Rig) -> None:
    hello = join_message().SerializeToString()
    member_messages = messages(MemberMessage, LIKELY).map(lambda each: each.SerializeToString())
    encoded = st.one_of(member_messages, member_messages, wire(MemberMessage, LIKELY))
    streams = st.one_of(
        st.lists(encoded, min_size=1, max_size=4),
        st.lists(encoded, max_size=4).map(lambda each: [hello, *each]),
    )

    def check(given: tuple[list[bytes], float]) -> None:
        stream, linger_s = given
        rig.run(call(rig.channel, JOIN, stream, linger_s=linger_s, leave_s=0.5)).check()

    fuzzing.run(st.tuples(streams, st.sampled_from([0.0, 0.03, 0.1])), check, 100)
    rig.check_serves()


def test_any_wake_leaves_the_engine_few_calls(fuzzing: Fuzzing) -> None:
    numbers = st.sampled_from([0, 1, 2, 3, (1 << 64) - 1])
    likely = {"group": st.just("g"), "incarnation": st.just("1"), "epoch": st.sampled_from([1, 1, 0, 2, (1 << 64) - 1])}
    accepted = st.builds(WakeRequest, **likely, round_number=st.one_of(numbers, st.integers(0, (1 << 64) - 1)))
    wakes = st.one_of(accepted, messages(WakeRequest, likely)).map(lambda each: each.SerializeToString())
    counts: list[int] = []

    def check(wakes: list[bytes]) -> None:
        for each in wakes:
            runner.run(call(member.channel, WAKE, [each])).check()
        counts.append(len(member.engine.calls))
        if counts[-1] >= MAX_QUEUED_WAKES:
            assert {epoch for epoch, _ in member.engine.take_calls()} == {1}

    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        member = runner.run(stack.enter_async_context(busy_member()))
        try:
            fuzzing.run(st.lists(st.one_of(wakes, wakes, wire(WakeRequest, likely)), max_size=10), check, 100)
            assert 0 < max(counts) <= MAX_QUEUED_WAKES
            member.engine.take_calls()
            runner.run(member.wake(1, 7))
            assert member.engine.take_calls() == [(1, 7)]
        finally:
            runner.run(stack.aclose())
