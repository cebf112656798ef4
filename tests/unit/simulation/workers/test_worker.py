"""Simulated workers over real gRPC."""

import asyncio
import socket
from dataclasses import replace

import grpc
import pytest

from baton.engine.kv.block_hash import HASH_BYTES, hash_blocks
from baton.protos import common_pb2, worker_pb2, worker_pb2_grpc
from baton.simulation.engine.request import SimulatedRequest
from baton.simulation.engine.tokens import continuation
from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.kv_pool import LinkReceive
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from tests.unit.simulation.served import SPEC, client_of, sampling, served, until

PROMPT = list(range(400, 600))
PHASES = ("pull", "read", "exposed", "tail")


async def test_a_worker_describes_itself() -> None:
    async with served("prefill", "decode", "both") as workers:
        for worker, role in zip(workers, ("PREFILL", "DECODE", "BOTH"), strict=True):
            description = await worker.remote.describe()
            assert description.role == worker_pb2.WorkerRole.Value(f"WORKER_ROLE_{role}")
            assert description.address == worker.remote.address
            assert (description.block_size, description.num_blocks, description.max_num_seqs) == (4, 1000, 8)
            assert description.max_model_len == 2000
        assert len({worker.simulated.description.incarnation for worker in workers}) == 3


async def test_a_worker_serves_at_an_ipv6_address() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 on this machine: {error}")
    config = SimulatedWorkerConfig(worker_id="both-0", role="both", host="::1")
    async with simulated_workers([config]) as (worker,), grpc.aio.insecure_channel(worker.address) as channel:
        assert worker.address.startswith("[::1]:")
        stub = worker_pb2_grpc.WorkerStub(channel)
        assert (await stub.Describe(worker_pb2.DescribeRequest())).address == worker.address


async def test_a_local_request_generates_the_continuation() -> None:
    async with served("both") as (worker,), client_of(worker) as client:
        first = await client.generate(PROMPT, sampling(20))
        assert first.token_ids == continuation(PROMPT, 20, SPEC)
        assert first.finish_reason == common_pb2.FINISH_REASON_LENGTH
        assert first.served_by.prefill_worker == first.served_by.decode_worker == "both-0"
        again = await client.generate([*PROMPT, *first.token_ids], sampling(5))
        assert again.token_ids == continuation(PROMPT, 25, SPEC)[20:]
        assert again.served_by.decode_cached_tokens == 216


async def test_a_request_moved_from_another_worker_continues() -> None:
    async with served("decode") as (worker,), client_of(worker) as client:
        whole = continuation(PROMPT, 20, SPEC)
        moved = await client.submit([*PROMPT, *whole[:7]], sampling(20), num_prompt_tokens=len(PROMPT))
        await moved.ended.wait()
        assert moved.token_ids == whole[7:]


async def test_a_stop_token_ends_a_request() -> None:
    expected = continuation(PROMPT, 20, SPEC)
    async with served("both") as (worker,), client_of(worker) as client:
        stopped = await client.generate(PROMPT, sampling(20, stop_token_ids=(expected[4],)))
        assert stopped.token_ids == expected[: expected.index(expected[4]) + 1]
        assert stopped.finish_reason == common_pb2.FINISH_REASON_STOP


@pytest.mark.parametrize("role", ["prefill", "both"])
async def test_a_handover_transfers_the_prompts_blocks(role: str) -> None:
    async with served(role, "decode") as (prefill, decode), client_of(decode) as client:
        generation = await client.generate(PROMPT, sampling(10), await prefill.remote.peer())
        assert generation.token_ids == continuation(PROMPT, 10, SPEC)
        by = generation.served_by
        assert (by.prefill_worker, by.decode_worker, by.kv_transport) == (f"{role}-0", "decode-1", "simulated")
        assert (by.handed_over_tokens, by.transferred_bytes) == (200, 50 * SPEC.block_bytes)
        assert generation.served_by_so_far == by
        assert by.transfer_s == pytest.approx(50 * SPEC.block_bytes / SPEC.link_bytes_per_s)
        assert by.handover_s > 0
        assert prefill.simulated.core.counters.prefilled_tokens == 200
        assert decode.simulated.core.counters.prefilled_tokens == 0
        # both have the beginning of the longer prompt, so only the rest is transferred
        longer = [*PROMPT, *range(40)]
        again = await client.generate(longer, sampling(10), await prefill.remote.peer())
        assert again.token_ids == continuation(longer, 10, SPEC)
        assert again.served_by.decode_cached_tokens == again.served_by.prefill_cached_tokens == 200
        assert again.served_by.handed_over_tokens == 40
        load = await decode.remote.wait_idle()
        assert (load.handovers, load.handover_bytes) == (2, 60 * SPEC.block_bytes)
        [timed] = load.completed_handovers
        assert (timed.transport, timed.num_bytes) == ("simulated", 60 * SPEC.block_bytes)
        assert {phase.phase: sum(phase.counts) for phase in timed.phases} == dict.fromkeys(PHASES, 2)
        sums = {phase.phase: phase.sum_s for phase in timed.phases}
        assert sums["read"] == pytest.approx(60 * SPEC.block_bytes / SPEC.link_bytes_per_s)
        assert sums["pull"] >= sums["read"] >= sums["exposed"]


async def test_a_first_token_may_end_the_request() -> None:
    async with served("prefill", "decode") as (prefill, decode), client_of(decode) as client:
        generation = await client.generate(PROMPT, sampling(1), await prefill.remote.peer())
        assert generation.token_ids == continuation(PROMPT, 1, SPEC)
        assert generation.finish_reason == common_pb2.FINISH_REASON_LENGTH


async def test_a_prefix_is_pulled_from_a_third_worker() -> None:
    async with served("prefill", "decode", "both") as (prefill, decode, third):
        async with client_of(third) as client:
            await client.generate(PROMPT, sampling(1))
        async with client_of(decode) as client:
            longer = [*PROMPT, *range(50)]
            generation = await client.submit(
                longer, sampling(4), await prefill.remote.peer(), await third.remote.peer()
            )
            await generation.ended.wait()
        assert generation.token_ids == continuation(longer, 4, SPEC)
        by = generation.served_by
        assert (by.prefix_pulled_tokens, by.prefill_cached_tokens, by.handed_over_tokens) == (200, 200, 250)
        assert prefill.simulated.core.counters.prefilled_tokens == 50


@pytest.mark.parametrize("is_remote", [False, True])
async def test_a_pull_of_a_handed_off_requests_kv_is_the_one_that_a_drain_waits_for(is_remote: bool) -> None:
    async with served("prefill", "decode", "both") as (prefill, decode, third):
        async with client_of(third) as client:
            await client.generate(PROMPT, sampling(1))
        handed_off = third.simulated.drain.handed_off
        for request_id in ("pulled", "other"):
            handed_off.add(request_id, "session")
        source = await third.remote.peer()
        source.handed_off = "pulled"
        async with client_of(decode) as client:
            peer = await prefill.remote.peer() if is_remote else None
            generation = await client.submit([*PROMPT, 1], sampling(4), peer, source)
            await generation.ended.wait()
        assert generation.served_by.prefix_pulled_tokens == 200
        waiting = asyncio.ensure_future(handed_off.wait_released())
        await asyncio.wait((waiting,), timeout=0.05)
        assert not waiting.done()
        handed_off.release("other")
        await asyncio.wait_for(waiting, 10)


async def test_a_wrong_prefix_source_only_costs_time() -> None:
    async with served("prefill", "decode") as (prefill, decode), client_of(decode) as client:
        stale_peer = worker_pb2.PeerWorker(worker_id="x", address=decode.remote.address, incarnation="an earlier life")
        generation = await client.submit(PROMPT, sampling(4), await prefill.remote.peer(), stale_peer)
        await generation.ended.wait()
        assert generation.token_ids == continuation(PROMPT, 4, SPEC)
        assert prefill.simulated.core.counters.prefilled_tokens == 200


async def test_a_prefill_worker_that_dies_only_costs_time(receives: list[LinkReceive]) -> None:
    slow = replace(SPEC, prefill_tokens_per_s=400)  # four chunks of 64 tokens, 0.16 s each
    config = SimulatedWorkerConfig(worker_id="prefill-0", role="prefill", spec=slow)
    async with served("decode") as (decode,), client_of(decode) as client, simulated_workers([config]) as (prefill,):
        peer = worker_pb2.PeerWorker(
            worker_id="prefill-0", address=prefill.address, incarnation=prefill.description.incarnation
        )
        generation = await client.submit(PROMPT, sampling(6), peer)
        await until(lambda: bool(receives) and receives[0].num_blocks_received > 0)
        await prefill.stop()
        await generation.ended.wait()
        assert generation.token_ids == continuation(PROMPT, 6, SPEC)
        assert generation.served_by.prefill_worker == "decode-0"
        assert generation.served_by.handed_over_tokens in (64, 128, 192)
        assert (await decode.remote.wait_idle()).handover_failures == 1


async def test_an_abort_frees_the_blocks_of_both_workers() -> None:
    async with served("prefill", "decode") as (prefill, decode), client_of(decode) as client:
        generation = await client.submit(PROMPT, sampling(1000), await prefill.remote.peer())
        await until(lambda: prefill.simulated.core.counters.steps > 0)
        await client.abort(generation)
        for worker in (prefill, decode):
            load = await worker.remote.wait_idle()
            assert load.num_free_blocks == load.num_blocks
            assert worker.simulated.drain.num_requests == 0


async def test_the_end_of_the_stream_aborts_its_requests() -> None:
    async with served("both") as (worker,):
        async with client_of(worker) as client:
            generation = await client.submit(PROMPT, sampling(1000))
            await generation.progressed.wait()
        await worker.remote.wait_idle()
        assert worker.simulated.drain.num_requests == 0


async def test_refusals_are_reported() -> None:
    spec = replace(SPEC, max_queue_len=2, max_num_seqs=1)
    async with served("both", spec=spec) as (worker,), client_of(worker) as client:
        no_logprobs = await client.generate(PROMPT, sampling(5, logprobs=1))
        too_long = await client.generate([1] * 2000, sampling(5))
        for refused in (no_logprobs, too_long):
            assert refused.error is not None
            assert refused.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        many = [await client.submit([index] * 40, sampling(50)) for index in range(8)]
        for generation in many:
            await generation.ended.wait()
        codes = [generation.error.code for generation in many if generation.error is not None]
        assert codes
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}


async def test_a_draining_worker_refuses_and_an_undrained_one_accepts_requests() -> None:
    async with served("both") as (worker,), client_of(worker) as client:
        running = await client.submit(PROMPT, sampling(40))
        await running.progressed.wait()
        updates = worker.remote.updates()
        assert not (await anext(updates)).draining
        drain = worker.remote.worker.Drain(worker_pb2.DrainRequest())
        while not (update := await anext(updates)).draining:
            pass
        refused = await client.generate(PROMPT, sampling(5))
        assert (refused.finish_reason, refused.token_ids) == (common_pb2.FINISH_REASON_HANDED_OFF, [])
        await drain
        await running.ended.wait()  # its last update may still be in flight
        assert len(running.token_ids) == 40
        while not update.drained:  # the first update that says draining may say this too
            update = await anext(updates)
        await worker.remote.worker.Undrain(worker_pb2.UndrainRequest())
        async for update in updates:
            if not update.draining:
                break
        assert (await client.generate(PROMPT, sampling(5))).token_ids == continuation(PROMPT, 5, SPEC)
        await updates.aclose()


async def test_calls_for_another_incarnation_are_refused() -> None:
    async with served("prefill", "both") as (prefill, both):
        attach = worker_pb2_grpc.DecodeStub(both.remote.channel).Attach()
        await attach.write(worker_pb2.RouterMessage(hello=worker_pb2.Hello(incarnation="an earlier life")))
        prefilling = worker_pb2_grpc.PrefillStub(prefill.remote.channel).Prefill(
            worker_pb2.PrefillRequest(incarnation=prefill.simulated.description.incarnation, fingerprint="another's")
        )
        lease = worker_pb2_grpc.KVSourceStub(both.remote.channel).Lease(worker_pb2.LeaseRequest(incarnation="x"))
        for call in (attach, prefilling, lease):
            assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_lease_has_no_more_blocks_than_the_pool() -> None:
    async with served("both") as (worker,), client_of(worker) as client:
        await client.generate(PROMPT, sampling(1))
        description = await worker.remote.describe()
        request = worker_pb2.LeaseRequest(
            block_hashes=hash_blocks(PROMPT, SPEC.block_size)[0] * 100_000,
            incarnation=description.incarnation,
            fingerprint=description.fingerprint,
        )
        call = worker_pb2_grpc.KVSourceStub(worker.remote.channel).Lease(request)
        assert (await call.read()).accepted.num_blocks == SPEC.num_blocks
        assert len((await call.read()).blocks.block_ids) == SPEC.num_blocks
        call.cancel()


async def test_a_watch_reports_load_and_cache_and_is_silent_when_idle() -> None:
    spec = replace(SPEC, max_num_batched_tokens=256)
    async with served("both", spec=spec) as (worker,), client_of(worker) as client:
        updates = worker.remote.updates()
        first = await anext(updates)
        assert (first.cache.sequence, first.cache.stored, first.load.num_running) == (0, b"", 0)
        assert first.load.prefill_tokens_per_s == 0
        generation = await client.submit(PROMPT, sampling(8))
        sequence, known = 0, set[bytes]()
        async for update in updates:
            if update.HasField("cache"):
                sequence += 1
                assert update.cache.sequence == sequence
                packed = update.cache.stored
                known.update(packed[start : start + HASH_BYTES] for start in range(0, len(packed), HASH_BYTES))
            if update.load.num_generated_tokens == 8 and update.load.num_running == 0:
                break
        await generation.ended.wait()
        tokens = [*PROMPT, *generation.token_ids]
        assert known == set(hash_blocks(tokens[:-1], 4))
        assert update.load.num_prefilled_tokens == 200
        assert update.load.prefill_tokens_per_s == pytest.approx(20_000, rel=0.1)
        assert update.load.decode_step_s == pytest.approx(0.0021, rel=0.1)
        silence = asyncio.ensure_future(anext(updates))
        await asyncio.wait([silence], timeout=0.3)  # three times the longest interval between updates of a busy worker
        assert not silence.done()
        silence.cancel()
        await asyncio.wait([silence])


async def test_a_watch_repeats_the_load_while_there_is_work() -> None:
    slow = replace(SPEC, step_s=30.0)
    config = SimulatedWorkerConfig(worker_id="both-0", role="both", spec=slow)
    async with simulated_workers([config]) as (worker,), grpc.aio.insecure_channel(worker.address) as channel:
        worker.core.add(SimulatedRequest(request_id="r", token_ids=PROMPT, num_output_tokens=2).to_engine())
        watch = worker_pb2_grpc.WorkerStub(channel).Watch(worker_pb2.WatchRequest(interval_ms=1))
        loop, begin_s = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        async with asyncio.timeout(20):
            loads = [(await watch.read()).load for _ in range(3)]
        assert loop.time() - begin_s >= 0.3
        assert [load.num_queued_tokens for load in loads] == [200] * 3
        watch.cancel()


async def test_a_watch_reports_the_accepted_commands() -> None:
    async with served("both") as (worker,):
        watch = worker.remote.worker.Watch(worker_pb2.WatchRequest(interval_ms=1, router_id="router"))
        assert not (await watch.read()).HasField("taken")
        attach = worker_pb2_grpc.DecodeStub(worker.remote.channel).Attach()
        incarnation = worker.simulated.description.incarnation
        hello = worker_pb2.Hello(router_id="router", incarnation=incarnation)
        await attach.write(worker_pb2.RouterMessage(hello=hello))
        for number, token_ids in ((1, PROMPT), (2, [])):  # the second is refused
            command = worker_pb2.GenerateCommand(
                request_id=str(number),
                token_ids=token_ids,
                num_prompt_tokens=len(token_ids),
                sampling=common_pb2.SamplingParams(max_tokens=3),
                number=number,
            )
            await attach.write(worker_pb2.RouterMessage(generate=[command]))
        taken: list[int] = []
        async with asyncio.timeout(20):
            while len(taken) < 2:
                taken += (await watch.read()).taken.numbers
        assert taken == [1, 2]
        attach.cancel()
        watch.cancel()
