"""Ends of requests and leases by errors, dead workers, closed streams and drains, after which nothing is held."""

import asyncio
import os
import random
import signal
from pathlib import Path

import grpc
import pytest

from baton.engine.kv.block_hash import hash_blocks
from baton.engine.sampling.params import SamplingParams
from baton.protos import common_pb2, worker_pb2, worker_pb2_grpc
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import worker_process, worker_processes
from tests.oracle import Oracle

CHUNKED = ("--max-num-batched-tokens=40", "--max-num-seqs=12")


async def test_a_lease_ends_with_its_call(tmp_path: Path) -> None:
    model = make_checkpoint("qwen2", tmp_path / "model")
    prompt = list(range(3, 103))
    async with worker_process("both", model, tmp_path) as worker, decode_client(worker) as client:
        await client.generate(prompt, SamplingParams(temperature=0, max_tokens=4))
        description = await worker.describe()
        request = worker_pb2.LeaseRequest(
            block_hashes=b"".join(hash_blocks(prompt, 16)),
            incarnation=description.incarnation,
            fingerprint=description.fingerprint,
        )
        stub = worker_pb2_grpc.KVSourceStub(worker.channel)
        calls = [stub.Lease(request) for _ in range(3)]
        for call in calls:
            assert (await call.read()).accepted.num_blocks == 6
            assert len((await call.read()).blocks.block_ids) == 6
        async for update in worker.updates():
            assert update.load.num_free_blocks == update.load.num_blocks - 6
            break
        for call in calls:
            call.cancel()
        await worker.wait_idle()
        for wrong in ({"incarnation": "other"}, {"fingerprint": "other"}):
            fields = {"incarnation": description.incarnation, "fingerprint": description.fingerprint} | wrong
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Lease(worker_pb2.LeaseRequest(**fields)).read()
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_dead_prefill_worker_costs_time_only(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    oracle = Oracle(model)
    rng = random.Random(7)
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(300)] for _ in range(6)]
    async with (
        worker_processes(
            model, tmp_path, ("prefill", "--max-num-batched-tokens=32", "--max-num-seqs=8"), ("decode", *CHUNKED)
        ) as (prefill, decode),
        decode_client(decode) as client,
    ):
        peer = await prefill.peer()
        generations = [await client.submit(prompt, greedy, peer) for prompt in prompts[:3]]
        await generations[0].progressed.wait()
        os.kill(prefill.child.pid, signal.SIGSTOP)  # so that it cannot finish the prefill, however fast it is
        generations += [await client.submit(prompt, greedy, peer) for prompt in prompts[3:]]
        prefill.child.kill()
        for prompt, generation in zip(prompts, generations, strict=True):
            await generation.ended.wait()
            assert generation.token_ids == oracle.greedy(prompt, 12, generation.token_ids)
        load = await decode.wait_idle()
        assert load.handover_failures >= 3
        local = await client.generate(prompts[0] + [5], greedy, peer)  # the prefill worker is still dead
        assert local.token_ids == oracle.greedy(prompts[0] + [5], 12, local.token_ids)


async def test_errors_are_reported_and_nothing_is_held(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    async with (
        worker_process("decode", model, tmp_path, "--max-num-waiting=2", "--max-num-seqs=1") as decode,
        decode_client(decode) as client,
    ):
        for prompt, sampling, expected in (
            ([5] * 600, SamplingParams(), "context of 512"),
            ([VOCAB_SIZE], SamplingParams(), "token id"),
            ([5], SamplingParams(top_p=0), "top_p"),
        ):
            generation = await client.generate(prompt, sampling)
            assert generation.finish_reason == common_pb2.FINISH_REASON_ERROR
            assert generation.error is not None
            assert generation.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
            assert expected in generation.error.message
        long = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
        generations = [await client.submit([5, 6], long)]
        await generations[0].progressed.wait()  # one runs, and two may wait
        generations += [await client.submit([5, 6], long) for _ in range(11)]
        await asyncio.gather(*(generation.ended.wait() for generation in generations))
        codes = {generation.error.code for generation in generations if generation.error is not None}
        assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]}
        assert sum(generation.error is None for generation in generations) >= 3
        await decode.wait_idle()


async def test_a_closed_stream_cancels_its_requests(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    long = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)
    async with (
        worker_processes(model, tmp_path, ("prefill",), ("decode",)) as (prefill, decode),
    ):
        peer = await prefill.peer()
        async with decode_client(decode) as client:
            generations = [await client.submit([5, 6, number], long, peer) for number in range(7, 17)]
            await generations[0].progressed.wait()
        load = await decode.wait_idle()
        assert load.num_generated_tokens < 10 * 300
        await prefill.wait_idle()


async def test_a_drained_worker_finishes_and_refuses(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    greedy = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    async with worker_process("decode", model, tmp_path) as decode, decode_client(decode) as client:
        running = await client.submit([5, 6, 7], greedy)
        await running.progressed.wait()
        draining = asyncio.ensure_future(decode.worker.Drain(worker_pb2.DrainRequest()))
        async for update in decode.updates():
            if update.draining:
                break
        late = await client.generate([5], greedy)
        assert (late.finish_reason, late.token_ids) == (common_pb2.FINISH_REASON_HANDED_OFF, [])
        await draining
        async with asyncio.timeout(30):
            await running.ended.wait()  # its last delta may arrive after the response to the drain
        assert len(running.token_ids) == 200
