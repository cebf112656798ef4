"""A job samples one token in the engine, and reports each finished block once."""

import asyncio

import pytest
import torch

from baton.engine.errors import EngineEnded
from baton.engine.kv.groups import KVGroups
from baton.engine.outputs import RequestOutput, SampledToken
from baton.engine.request import BlockId, RequestId
from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.block_slice import PartGroup
from baton.kvtransfer.checksum.block_checksum import block_checksums
from baton.kvtransfer.in_memory import InMemoryNetwork, InMemoryTransport
from baton.prefill_worker.service import PrefillJob, PrefillStep
from baton.process.progress import HEARTBEAT_S
from baton.protos import common_pb2, worker_pb2
from baton.worker.kv.source import Announcements
from baton.worker.ranks.ranks import Ranks

BLOCK_SIZE = 4


def make_job(num_tokens: int, num_prompt_tokens: int, num_cached_tokens: int = 0) -> PrefillJob:
    message = worker_pb2.PrefillRequest(
        request_id="r",
        token_ids=range(num_tokens),
        num_prompt_tokens=num_prompt_tokens,
        sampling=common_pb2.SamplingParams(max_tokens=50, min_tokens=20, temperature=0.5),
        num_cached_tokens=num_cached_tokens,
    )
    return PrefillJob.of(message, RequestId("r"))


def reports_of(pool: torch.Tensor) -> Announcements:
    """Return the block reports of a worker with one rank to one reader."""
    transport = InMemoryTransport(PoolIdentity("prefill", "model"), InMemoryNetwork())
    return Announcements(Ranks(transport, pool, PartGroup(1, 1)), 1)


def test_a_job_samples_one_token_after_the_known_ones() -> None:
    fresh, moved = make_job(10, 10).request, make_job(10, 7).request
    assert (fresh.sampling.max_tokens, moved.sampling.max_tokens) == (1, 4)
    assert (fresh.sampling.min_tokens, moved.sampling.min_tokens) == (1, 4)
    assert fresh.keep_blocks
    assert not fresh.receives_kv
    assert moved.num_output_tokens == 3


async def test_each_block_is_reported_once_and_checksums_delay_no_step() -> None:
    pool = torch.arange(8 * 32, dtype=torch.float32).view(8, 32)
    job = make_job(18, 18, num_cached_tokens=4)
    job.request.block_table = [BlockId(block) for block in (7, 3, 5, 1, 2)]
    for num_computed, token in ((6, None), (7, None), (14, None), (18, 42)):
        sampled = SampledToken(token) if token is not None else None
        job.steps.put_nowait(PrefillStep(RequestOutput(RequestId("r"), num_computed, sampled), 1.0 * num_computed))
    async with asyncio.timeout(10):
        events = [event async for event in job.events(reports_of(pool), KVGroups(BLOCK_SIZE), lambda: False)]
    sent = [event for event in events if event.ListFields()]
    assert [[field.name for field, _ in event.ListFields()] for event in sent] == [
        ["blocks"],
        ["blocks", "first_token"],
        ["checksums"],
        ["checksums"],
    ]
    for first_index, ids, (reported, checked) in ((1, [3, 5], sent[::2]), (3, [1, 2], sent[1::2])):
        assert (reported.blocks.first_index, list(reported.blocks.block_ids)) == (first_index, ids)
        assert (checked.checksums.first_index, list(checked.checksums.checksums)) == (
            first_index,
            block_checksums(pool, ids),
        )
    assert sent[1].first_token.token_id == 42


async def test_keep_alives_are_sent_while_a_slow_rank_computes_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    job = make_job(4, 4)
    job.request.block_table = [BlockId(3)]
    job.steps.put_nowait(PrefillStep(RequestOutput(RequestId("r"), 4, SampledToken(42)), 1.0))
    announcements = reports_of(torch.zeros(8, 32))
    compute = announcements.next_checksums

    async def compute_slowly() -> worker_pb2.BlockChecksums:
        await asyncio.sleep(3 * HEARTBEAT_S)
        return await compute()

    monkeypatch.setattr(announcements, "next_checksums", compute_slowly)
    async with asyncio.timeout(10):
        announced, *keep_alives, checked = [
            event async for event in job.events(announcements, KVGroups(BLOCK_SIZE), lambda: False)
        ]
    assert announced.HasField("first_token")
    assert keep_alives
    assert set(map(repr, keep_alives)) == {repr(worker_pb2.PrefillEvent())}
    assert checked.HasField("checksums")


async def test_checksums_of_blocks_that_are_no_longer_held_are_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    job, pool = make_job(4, 4), torch.zeros(8, 32)
    job.request.block_table = [BlockId(3)]
    job.steps.put_nowait(PrefillStep(RequestOutput(RequestId("r"), 4, SampledToken(42)), 1.0))
    announcements = reports_of(pool)
    compute = announcements.next_checksums

    async def compute_while_the_service_ends() -> worker_pb2.BlockChecksums:
        job.close()
        pool[3] = 1.0
        return await compute()

    monkeypatch.setattr(announcements, "next_checksums", compute_while_the_service_ends)
    async with asyncio.timeout(10):
        events = [event async for event in job.events(announcements, KVGroups(BLOCK_SIZE), lambda: False)]
        with pytest.raises(EngineEnded, match="ask another"):
            await job.wait_closed()
    assert [event.HasField("checksums") for event in events] == [False]


@pytest.mark.parametrize("is_stuck", [False, True])
async def test_keep_alives_are_sent_only_while_the_engine_steps(is_stuck: bool) -> None:
    job = make_job(18, 18, num_cached_tokens=0)
    events = job.events(reports_of(torch.zeros(8, 32)), KVGroups(BLOCK_SIZE), lambda: is_stuck)
    first = asyncio.ensure_future(anext(events))
    await asyncio.wait((first,), timeout=4 * HEARTBEAT_S)
    if is_stuck:
        assert not first.done()
        first.cancel()
    else:
        assert first.result() == worker_pb2.PrefillEvent()
