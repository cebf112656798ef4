"""A worker in a group: the weights with which it joins, and a bounded number of wakes on their way to its engine."""

import asyncio
import shutil
from pathlib import Path

import grpc
import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineEnded
from baton.rpc.peers import Channels
from baton.rpc.tls import Plaintext
from baton.worker.config import WorkerConfig
from baton.worker.expert_group import MAX_QUEUED_WAKES, joined
from tests.checkpoints import make_checkpoint
from tests.unit.membership.rendezvous.rendezvous_rig import Stream, life, rendezvous, until
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


async def test_a_worker_joins_with_the_weights_that_it_has_loaded(tmp_path: Path) -> None:
    """Also if they were replaced while it started."""
    model, new = (make_checkpoint("mixtral", tmp_path / f"{seed}", seed) for seed in (0, 1))
    engine_config = EngineConfig(model=str(model), kv_cache_memory_bytes=1 << 21, num_threads=1)
    channels = Channels()
    async with rendezvous() as (service, address):
        config = WorkerConfig(
            role="decode", worker_id="a", engine=engine_config, expert_parallel=2, rendezvous=address, group="g"
        )
        async with joined(config, "1", Plaintext(), channels) as group:
            assert group is not None
            shutil.rmtree(model)
            new.rename(model)
            loading = asyncio.create_task(asyncio.to_thread(Engine, engine_config, group=group.experts))
            await until(lambda: service.num_members or loading.done())
            async with grpc.aio.insecure_channel(address) as channel:
                other = Stream(channel)
                await other.join(life=life("b"), size=2, fingerprint="other")
                _, details = await other.refusal()
            group.leave_engine()
            with pytest.raises(EngineEnded):
                await loading
    await channels.close()
    fingerprint = (await asyncio.to_thread(Engine, engine_config)).fingerprint
    assert f"that of group g is {fingerprint}/" in details
