"""Simulated prefill workers that die while they compute a prompt, and the next ones of the plan."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from baton.protos import common_pb2, worker_pb2
from baton.simulation.engine.tokens import continuation
from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.kv_pool import LinkReceive
from baton.simulation.workers.worker import SimulatedWorker
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from tests.integration.decode_client import DecodeClient, Generation
from tests.unit.simulation.served import SPEC, Served, client_of, sampling, served, until

PROMPT = [index % 900 for index in range(600)]
NUM_TOKENS = 8
SLOW = replace(SPEC, prefill_tokens_per_s=800)  # chunks of 64 tokens, 0.08 s each


@asynccontextmanager
async def workers(num_prefill: int) -> AsyncIterator[tuple[Served, DecodeClient, list[SimulatedWorker]]]:
    """Yield a decode worker, a client of it, and slow prefill workers."""
    configs = [
        SimulatedWorkerConfig(worker_id=f"prefill-{index}", role="prefill", spec=SLOW) for index in range(num_prefill)
    ]
    async with served("decode") as (decode,), client_of(decode) as client, simulated_workers(configs) as prefill:
        yield decode, client, prefill


def peer(worker: SimulatedWorker) -> worker_pb2.PeerWorker:
    """Return the worker as named in a plan."""
    return worker_pb2.PeerWorker(
        worker_id=worker.config.worker_id, address=worker.address, incarnation=worker.description.incarnation
    )


async def submit(client: DecodeClient, prompt: list[int], prefill: list[SimulatedWorker]) -> Generation:
    """Submit a request whose plan names these prefill workers."""
    first, *others = map(peer, prefill)
    return await client.submit(prompt, sampling(NUM_TOKENS), first, fallbacks=others)


def assert_right(generation: Generation, prompt: list[int]) -> common_pb2.ServedBy:
    """Check the generated tokens; return how they were served."""
    assert generation.error is None
    assert generation.token_ids == continuation(prompt, NUM_TOKENS, SPEC)
    assert generation.finish_reason == common_pb2.FINISH_REASON_LENGTH
    return generation.served_by


async def test_the_next_worker_computes_what_is_missing() -> None:
    async with workers(3) as (decode, client, (dying, next_one, unasked)):
        generation = await submit(client, PROMPT, [dying, next_one, unasked])
        await until(lambda: decode.simulated.core.link.num_bytes > 0)
        await dying.stop()
        await generation.ended.wait()
        by = assert_right(generation, PROMPT)
        assert (by.prefill_worker, by.decode_worker) == ("prefill-1", "decode-0")
        assert by.handed_over_tokens == len(PROMPT)
        assert by.transferred_bytes == len(PROMPT) // SPEC.block_size * SPEC.block_bytes
        assert by.kv_transport == "simulated"
        assert next_one.core.counters.prefilled_tokens == len(
            PROMPT
        )  # it had nothing cached, and no block was sent twice
        assert unasked.core.counters.requests == decode.simulated.core.counters.prefilled_tokens == 0
        load = await decode.remote.wait_idle()
        assert (load.handovers, load.handover_failures) == (1, 1)
        assert load.handover_bytes == by.transferred_bytes


async def test_prefill_workers_are_tried_in_order() -> None:
    async with workers(3) as (decode, client, (first, second, third)):
        generation = await submit(client, PROMPT, [first, second, third])
        await until(lambda: first.core.counters.prefilled_tokens > 0)
        await first.stop()
        await until(lambda: second.core.counters.prefilled_tokens > 0)
        await second.stop()
        await generation.ended.wait()
        assert assert_right(generation, PROMPT).prefill_worker == "prefill-2"
        assert (await decode.remote.wait_idle()).handover_failures == 2


@pytest.mark.parametrize("num_dead_fallbacks", [0, 1])
async def test_with_no_prefill_worker_left_the_decode_worker_computes_the_rest(
    receives: list[LinkReceive], num_dead_fallbacks: int
) -> None:
    async with workers(1 + num_dead_fallbacks) as (decode, client, prefill):
        for dead in prefill[1:]:
            await dead.stop()
        generation = await submit(client, PROMPT, prefill)
        # Bytes on the link are not enough: a block counts once it has been read and its checksum is known.
        await until(lambda: bool(receives) and receives[0].num_blocks_received > 0)
        await prefill[0].stop()
        await generation.ended.wait()
        by = assert_right(generation, PROMPT)
        assert by.prefill_worker == by.decode_worker == "decode-0"
        assert 0 < by.handed_over_tokens < len(PROMPT)
        assert decode.simulated.core.counters.prefilled_tokens == len(PROMPT) - by.handed_over_tokens
        load = await decode.remote.wait_idle()
        assert (load.handovers, load.handover_failures) == (0, 1 + num_dead_fallbacks)


async def test_a_short_rest_is_computed_by_the_decode_worker() -> None:
    prompt = PROMPT[:200]
    async with workers(2) as (_, client, (dying, unasked)):
        generation = await submit(client, prompt, [dying, unasked])
        await until(lambda: dying.core.counters.prefilled_tokens > 0)
        await dying.stop()
        await generation.ended.wait()
        assert assert_right(generation, prompt).prefill_worker == "decode-0"
        assert unasked.core.counters.requests == 0


async def test_an_abort_between_two_workers_frees_everything() -> None:
    async with workers(2) as (decode, client, (dying, next_one)):
        generation = await submit(client, PROMPT, [dying, next_one])
        await until(lambda: dying.core.counters.prefilled_tokens > 0)
        await dying.stop()
        await until(lambda: next_one.core.counters.requests == 1)
        await client.abort(generation)
        load = await decode.remote.wait_idle()
        assert load.num_free_blocks == load.num_blocks
        await until(lambda: next_one.drain.num_requests == 0)
        next_one.core.scheduler.check_integrity()
