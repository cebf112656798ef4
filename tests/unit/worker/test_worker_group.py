"""Wakes on their way to a worker's engine: bounded, whatever a peer sends while the engine is busy."""

import asyncio

import grpc
import pytest

from baton.worker.expert_group import MAX_QUEUED_WAKES
from tests.unit.membership.rendezvous.rendezvous_rig import until
from tests.unit.worker.busy_member import busy_member

MOST = (1 << 64) - 1


async def test_wakes_of_other_epochs_do_not_reach_the_engine() -> None:
    async with busy_member() as member:
        epoch = member.group.member.epoch
        for other in (0, epoch - 1, epoch + 1, MOST):
            await member.wake(other, 1)
        assert member.engine.calls == []
        await member.wake(epoch, MOST)
        assert member.engine.take_calls() == [(epoch, MOST)]


async def test_equal_wakes_are_queued_once() -> None:
    async with busy_member() as member:
        epoch = member.group.member.epoch
        for _ in range(3):
            await asyncio.gather(*(member.wake(epoch, 5) for _ in range(10)))
            assert len(member.engine.calls) == 1
            assert member.engine.take_calls() == [(epoch, 5)]


async def test_a_flood_of_wakes_is_refused_until_the_engine_has_taken_some() -> None:
    async with busy_member() as member:
        epoch = member.group.member.epoch
        for number in range(MAX_QUEUED_WAKES):
            await member.wake(epoch, number)
        for number in range(MAX_QUEUED_WAKES, 3 * MAX_QUEUED_WAKES):
            with pytest.raises(grpc.aio.AioRpcError, match="too many wakes are queued") as caught:
                await member.wake(epoch, number)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await member.wake(epoch, 3)  # is queued already
        assert len(member.engine.calls) == MAX_QUEUED_WAKES
        assert member.engine.take_calls() == [(epoch, number) for number in range(MAX_QUEUED_WAKES)]
        await member.wake(epoch, MOST)
        assert member.engine.take_calls() == [(epoch, MOST)]


async def test_a_newer_epoch_reaches_an_engine_with_a_full_queue() -> None:
    async with busy_member() as member:
        epoch = member.group.member.epoch
        for number in range(1, MAX_QUEUED_WAKES + 1):
            await member.wake(epoch, number)
        member.group.member.report_broken(epoch, "the test wants a newer epoch")
        await until(lambda: member.group.member.epoch > epoch)
        assert member.engine.take_calls()[-1] == (member.group.member.epoch, 0)
