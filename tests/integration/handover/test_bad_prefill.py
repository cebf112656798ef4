"""Misbehaving prefill workers: the decode worker's tokens are right, and every block is freed."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from baton.engine.sampling.params import SamplingParams
from baton.protos import worker_pb2
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.handover.scripted_prefill import Prefilled, Script, scripted_prefill
from tests.integration.worker_process import WorkerProcess, worker_processes
from tests.marks import slow_case
from tests.oracle import Oracle

pytestmark = pytest.mark.asyncio(loop_scope="module")

Events = AsyncIterator[worker_pb2.PrefillEvent]
PROMPT = list(range(10, 100))  # 6 blocks, the last one partial
LONG = [10 + 7 * index % 90 for index in range(300)]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@dataclass(frozen=True)
class Rig:
    """The workers of all tests here; each test has a unique salt, so that its prompt is not cached."""

    decode: WorkerProcess
    impatient: WorkerProcess  # a decode worker with a transfer deadline of 1 s
    prefill: WorkerProcess
    oracle: Oracle


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    directory = tmp_path_factory.mktemp("rig")
    model = make_checkpoint("qwen3", directory / "model")
    workers = ("decode",), ("decode", "--transfer-deadline-s=1"), ("prefill",)
    async with worker_processes(model, directory, *workers) as started:
        yield Rig(*started, Oracle(model))


def new_handovers(before: worker_pb2.WorkerLoad, after: worker_pb2.WorkerLoad) -> tuple[int, int]:
    """Return the numbers of handovers and of failed handovers between two reports."""
    return after.handovers - before.handovers, after.handover_failures - before.handover_failures


async def wrong_checksum(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    yield prefilled.blocks(0, [1, 2], checksum_error=1)
    await asyncio.Event().wait()


async def ends_at_once(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()


async def leaves_a_gap(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    yield prefilled.blocks(2, [1, 2])
    await asyncio.Event().wait()


async def announces_too_much(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    yield prefilled.blocks(0, list(range(10)))
    await asyncio.Event().wait()


async def names_a_block_that_is_not_there(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    event = prefilled.blocks(0, [1, 2])
    event.blocks.block_ids[1] = 1000
    yield event
    await asyncio.Event().wait()


async def announces_before_accepting(prefilled: Prefilled) -> Events:
    yield prefilled.blocks(0, [1, 2])
    await asyncio.Event().wait()


async def sends_no_checksums(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    event = prefilled.blocks(0, list(range(6)))
    event.ClearField("checksums")
    yield event
    await asyncio.Event().wait()


async def sends_checksums_without_blocks(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    event = prefilled.blocks(0, list(range(6)))
    event.ClearField("blocks")
    yield event
    await asyncio.Event().wait()


async def sends_a_token_that_the_model_lacks(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    event = prefilled.blocks(0, list(range(6)))
    event.first_token.token_id = 1_000_000
    yield event
    await asyncio.Event().wait()


async def accepts_twice(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    yield prefilled.accepted()
    await asyncio.Event().wait()


async def announces_the_same_again_and_again(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    event = prefilled.blocks(0, [1])
    event.ClearField("checksums")
    for _ in range(100):
        yield event
    await asyncio.Event().wait()


async def says_nothing(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    await asyncio.Event().wait()


async def breaks(prefilled: Prefilled) -> Events:
    yield prefilled.accepted()
    raise RuntimeError("on purpose")


@pytest.mark.parametrize(
    ("script", "num_checksum_failures"),
    [
        (wrong_checksum, 1),
        (ends_at_once, 0),
        (leaves_a_gap, 0),
        (announces_too_much, 0),
        (names_a_block_that_is_not_there, 0),
        (announces_before_accepting, 0),
        (sends_no_checksums, 0),
        (sends_checksums_without_blocks, 0),
        (sends_a_token_that_the_model_lacks, 0),
        (accepts_twice, 0),
        slow_case(announces_the_same_again_and_again, 0),
        (breaks, 0),
        slow_case(says_nothing, 0),
    ],
)
async def test_a_bad_handover_falls_back_to_local_prefill(rig: Rig, script: Script, num_checksum_failures: int) -> None:
    decode = rig.impatient
    before = await decode.wait_idle()
    async with decode_client(decode) as client, scripted_prefill(await decode.describe(), script) as (peer, service):
        generation = await client.submit(PROMPT, GREEDY, peer, cache_salt=script.__name__)
        await generation.ended.wait()
        assert generation.token_ids == rig.oracle.greedy(PROMPT, GREEDY.max_tokens, generation.token_ids)
        assert generation.served_by.prefill_worker == generation.served_by.decode_worker
        await service.ended.wait()  # the lease was released
    load = await decode.wait_idle()
    assert load.handover_failures == before.handover_failures + 1
    assert load.checksum_failures == before.checksum_failures + num_checksum_failures


@pytest.mark.parametrize("script", [ends_at_once, wrong_checksum, breaks, slow_case(says_nothing)])
async def test_another_prefill_worker_computes_what_is_missing(rig: Rig, script: Script) -> None:
    decode, prefill = rig.decode, rig.prefill
    before = await decode.wait_idle()
    async with decode_client(decode) as client, scripted_prefill(await decode.describe(), script) as (bad, service):
        fallbacks = [await prefill.peer()]
        generation = await client.submit(LONG, GREEDY, bad, cache_salt=script.__name__, fallbacks=fallbacks)
        await generation.ended.wait()
        assert generation.token_ids == rig.oracle.greedy(LONG, GREEDY.max_tokens, generation.token_ids)
        assert generation.served_by.prefill_worker == (await prefill.describe()).worker_id
        assert generation.served_by.handed_over_tokens == len(LONG)
        await service.ended.wait()
        assert new_handovers(before, await decode.wait_idle()) == (1, 1)
        await prefill.wait_idle()


async def test_each_of_several_prefill_workers_is_tried_once(rig: Rig) -> None:
    decode = rig.decode
    before, described = await decode.wait_idle(), await decode.describe()
    async with (
        decode_client(decode) as client,
        scripted_prefill(described, ends_at_once) as (first, _),
        scripted_prefill(described, breaks) as (second, _),
    ):
        generation = await client.submit(LONG, GREEDY, first, cache_salt="several", fallbacks=[second])
        await generation.ended.wait()
        assert generation.token_ids == rig.oracle.greedy(LONG, GREEDY.max_tokens, generation.token_ids)
        assert generation.served_by.prefill_worker == generation.served_by.decode_worker
        assert new_handovers(before, await decode.wait_idle()) == (0, 2)


async def test_another_fingerprint_is_refused(rig: Rig) -> None:
    decode = rig.decode
    before = await decode.wait_idle()
    async with (
        decode_client(decode) as client,
        scripted_prefill(await decode.describe(), wrong_checksum, "another model") as (peer, _),
    ):
        generation = await client.submit(PROMPT, GREEDY, peer, cache_salt="another fingerprint")
        await generation.ended.wait()
    assert generation.token_ids == rig.oracle.greedy(PROMPT, GREEDY.max_tokens, generation.token_ids)
    load = await decode.wait_idle()
    assert new_handovers(before, load) == (0, 1)
    assert (load.checksum_failures, load.handover_bytes) == (before.checksum_failures, before.handover_bytes)


async def test_a_cancel_during_a_handover_releases_the_lease(rig: Rig) -> None:
    decode, begun = rig.decode, asyncio.Event()

    async def hangs(prefilled: Prefilled) -> Events:
        yield prefilled.accepted()
        yield prefilled.blocks(0, [1, 2])
        begun.set()
        await asyncio.Event().wait()

    async with (
        decode_client(decode) as client,
        scripted_prefill(await decode.describe(), hangs) as (peer, service),
    ):
        generation = await client.submit(PROMPT, GREEDY, peer, cache_salt="hangs")
        await begun.wait()
        async for update in decode.updates():
            if update.load.num_waiting == 1 and update.load.num_free_blocks < update.load.num_blocks:
                break
        await client.abort(generation)
        await service.ended.wait()
        await decode.wait_idle()
    assert generation.token_ids == []
