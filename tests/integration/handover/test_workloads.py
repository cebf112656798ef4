"""Random workloads: shared prefixes, preemption, cancellation, sampling; every output is compared token for token."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.sampling.params import SamplingParams
from baton.protos import worker_pb2
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import DecodeClient, Generation, decode_client
from tests.integration.worker_process import worker_processes
from tests.marks import slow_case
from tests.oracle import Oracle

CHUNKED = ("--max-num-batched-tokens=40", "--max-num-seqs=12")
SMALL_POOLS = {  # two or three requests
    "qwen3-moe": "--kv-cache-memory-bytes=340KiB",  # 27 blocks
    "gemma3": "--kv-cache-memory-bytes=256KiB",  # 64 blocks of a layer each
    "qwen3-next": "--kv-cache-memory-bytes=360KiB",  # 45 blocks, of which a state takes 3
    "nemotron-h": "--kv-cache-memory-bytes=164KiB",  # 41 blocks, of which a state takes 4
    "falcon-h1": "--kv-cache-memory-bytes=540KiB",  # 45 blocks, of which a state takes 3
    "mamba2": "--kv-cache-memory-bytes=224KiB",  # 56 blocks, of which a state takes 9
}
RECURRENT = ("qwen3-next", "nemotron-h", "falcon-h1", "mamba2")
FLAGS = {"gemma3": ["--hybrid-kv-cache"], **{name: ["--state-checkpoint-tokens=32"] for name in RECURRENT}}


def workload(rng: random.Random, count: int) -> list[tuple[list[int], SamplingParams]]:
    """Generate prompts that share prefixes and repeat, half of them sampled with a seed."""
    bases = [[rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(20, 150))] for _ in range(4)]
    requests = []
    for _ in range(count):
        base = rng.choice(bases)
        prompt = base[: rng.randint(1, len(base))]
        if rng.random() < 0.7:
            prompt = prompt + [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, 30))]
        sampling = SamplingParams(temperature=0, max_tokens=rng.randint(1, 60), ignore_eos=True)
        if rng.random() < 0.5:
            sampling = replace(
                sampling,
                temperature=0.8,
                top_p=0.9,
                seed=rng.randrange(1 << 40),
                frequency_penalty=rng.choice([0.0, 0.5]),
                repetition_penalty=rng.choice([1.0, 1.2]),
            )
        requests.append((prompt, sampling))
    return requests


async def run_one(
    client: DecodeClient, request: tuple[list[int], SamplingParams], prefill: worker_pb2.PeerWorker | None, cut: int
) -> Generation:
    """Run a request to its end, or cancel it after `cut` tokens; 0: run to its end."""
    generation = await client.submit(*request, prefill)
    while not generation.ended.is_set():
        if cut and len(generation.token_ids) >= cut:
            await client.abort(generation)
            return generation
        generation.progressed.clear()
        await generation.progressed.wait()
    return generation


@pytest.mark.parametrize(
    ("architecture", "transport"),
    [
        ("qwen3-moe", "shared_memory"),
        slow_case("qwen3-moe", "tcp"),
        slow_case("qwen3-moe", "nixl"),
        slow_case("gemma3", "shared_memory"),
        slow_case("gemma3", "tcp"),
        slow_case("qwen3-next", "shared_memory"),
        slow_case("qwen3-next", "tcp"),
        slow_case("nemotron-h", "tcp"),
        slow_case("falcon-h1", "shared_memory"),
        slow_case("mamba2", "shared_memory"),
    ],
)
async def test_disaggregated_equals_colocated_equals_transformers(
    architecture: str, transport: str, tmp_path: Path
) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    oracle = Oracle(model)
    rng = random.Random(transport)
    requests = workload(rng, 30)
    cuts = [rng.randint(1, 10) if rng.random() < 0.2 else 0 for _ in requests]
    flag = f"--transport={transport}"
    kept = FLAGS.get(architecture, [])
    async with (
        worker_processes(
            model,
            tmp_path,
            ("prefill", flag, *CHUNKED, *kept),
            ("decode", flag, *CHUNKED, SMALL_POOLS[architecture], *kept),
            ("both", *CHUNKED, *kept),
        ) as (prefill, decode, both),
        decode_client(decode) as client,
        decode_client(both) as reference,
    ):
        peer = await prefill.peer()
        plans = [peer if rng.random() < 0.8 else None for _ in requests]
        jobs = zip(requests, plans, cuts, strict=True)
        moved = await asyncio.gather(*(run_one(client, *job) for job in jobs))
        colocated = await asyncio.gather(*(run_one(reference, request, None, 0) for request in requests))
        for (prompt, sampling), cut, ours, theirs in zip(requests, cuts, moved, colocated, strict=True):
            expected = theirs.token_ids
            assert len(expected) == sampling.max_tokens
            if sampling.temperature == 0:
                assert expected == oracle.greedy(prompt, sampling.max_tokens, expected)
            assert ours.token_ids == (expected[: len(ours.token_ids)] if cut else expected)
        # Whatever the others did: these four start together and outgrow the pool, which forces preemption.
        greedy = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        crowd = [[rng.randrange(3, VOCAB_SIZE) for _ in range(110)] for _ in range(4)]
        crowded = await asyncio.gather(*(run_one(client, (prompt, greedy), None, 0) for prompt in crowd))
        for prompt, generation in zip(crowd, crowded, strict=True):
            assert generation.token_ids == oracle.greedy(prompt, greedy.max_tokens, generation.token_ids)
        load = await decode.wait_idle()
        await asyncio.gather(prefill.wait_idle(), both.wait_idle())
        if architecture != "gemma3":  # blocks that windows give back may be enough for all
            assert load.num_preemptions > 0, "the pool was meant to be too small"
        assert load.handovers > 12
        assert load.handover_failures == 0


async def test_a_request_continues_elsewhere_with_the_same_tokens(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    rng = random.Random(4)
    async with (
        worker_processes(model, tmp_path, ("prefill", *CHUNKED), ("decode", *CHUNKED)) as (prefill, decode),
        decode_client(decode) as client,
    ):
        peer = await prefill.peer()
        for prompt, sampling in workload(rng, 8):
            sampling = replace(sampling, max_tokens=20, logprobs=2)
            whole = await client.generate(prompt, sampling)
            for num_known in (1, 7, 19):
                known = whole.token_ids[:num_known]
                salt = f"cold {num_known}"  # otherwise the whole prompt would be cached
                rest = await client.submit(
                    prompt + known, sampling, peer, num_prompt_tokens=len(prompt), cache_salt=salt
                )
                await rest.ended.wait()
                assert known + rest.token_ids == whole.token_ids
                assert [each.chosen.token_id for each in rest.logprobs] == rest.token_ids
                assert [each.chosen.logprob for each in rest.logprobs] == pytest.approx(
                    [each.chosen.logprob for each in whole.logprobs[num_known:]], abs=1e-4
                )


async def test_prompt_logprobs_survive_a_handover(tmp_path: Path) -> None:
    model = make_checkpoint("mistral", tmp_path / "model")
    oracle = Oracle(model)
    prompt = [random.Random(5).randrange(3, VOCAB_SIZE) for _ in range(120)]
    sampling = SamplingParams(temperature=0, max_tokens=4, logprobs=3, prompt_logprobs=2, ignore_eos=True)
    async with (
        worker_processes(model, tmp_path, ("prefill", *CHUNKED), ("decode", *CHUNKED)) as (prefill, decode),
        decode_client(decode) as client,
    ):
        peer = await prefill.peer()
        for plan in (peer, None, peer):  # the prompt is cached from the second time on
            generation = await client.generate(prompt, sampling, plan)
            tokens = prompt + generation.token_ids
            positions = [*generation.prompt_logprobs, *generation.logprobs]
            assert [each.chosen.token_id for each in positions] == tokens[1:]
            assert [each.chosen.logprob for each in positions] == pytest.approx(oracle.logprobs(tokens), abs=1e-4)
            assert all(len(each.top) == 2 for each in generation.prompt_logprobs)
            assert all(len(each.top) == 3 for each in generation.logprobs)


async def test_a_prefill_worker_pulls_what_a_decode_worker_has(tmp_path: Path) -> None:
    model = make_checkpoint("qwen2", tmp_path / "model")
    oracle = Oracle(model)
    prompt = [random.Random(6).randrange(3, VOCAB_SIZE) for _ in range(150)]
    greedy = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
    three = ("prefill", *CHUNKED), ("decode", *CHUNKED), ("decode", *CHUNKED)
    async with (
        worker_processes(model, tmp_path, *three) as (prefill, source, decode),
        decode_client(source) as first,
        decode_client(decode) as second,
    ):
        warm = await first.generate(prompt, greedy)
        assert warm.token_ids == oracle.greedy(prompt, 16, warm.token_ids)
        longer = prompt + warm.token_ids[:10] + [7, 8, 9]
        generation = await second.submit(longer, greedy, await prefill.peer(), await source.peer())
        await generation.ended.wait()
        assert generation.token_ids == oracle.greedy(longer, 16, generation.token_ids)
        assert generation.served_by.prefix_pulled_tokens == 160
        assert generation.served_by.prefill_cached_tokens == 160
        assert generation.served_by.handed_over_tokens == len(longer)
        await asyncio.gather(prefill.wait_idle(), source.wait_idle(), decode.wait_idle())


@pytest.mark.slow
async def test_one_engine_prefills_for_another_and_decodes(tmp_path: Path) -> None:
    """Concurrently, in a pool that is too small for both: every token must equal that of an undisturbed engine."""
    model = make_checkpoint("qwen3", tmp_path / "model")
    oracle = Oracle(model)
    rng = random.Random(11)
    small = ("--max-num-batched-tokens=24", "--max-num-seqs=16", "--kv-cache-memory-bytes=800KiB")
    two = ("both", "--block-size=4", *small), ("decode", "--block-size=4", "--max-num-seqs=64")
    async with (
        worker_processes(model, tmp_path, *two) as (both, decode),
        decode_client(decode) as client,
        decode_client(both) as other,
    ):
        peer, elsewhere = await both.peer(), await decode.peer()

        async def decode_there(number: int) -> None:
            """Outgrow the pool; a plan that names another worker for the prefill is not followed."""
            for _ in range(2):
                prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(5, 20))]
                greedy = SamplingParams(temperature=0, max_tokens=rng.randint(60, 90), ignore_eos=True)
                generation = await run_one(other, (prompt, greedy), elsewhere if number % 2 else None, 0)
                assert generation.token_ids == oracle.greedy(prompt, greedy.max_tokens, generation.token_ids)
                assert generation.served_by.prefill_worker == peer.worker_id

        async def prefill_there() -> None:
            for number in range(6):
                prompt = [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(120, 190))]
                greedy = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
                generation = await run_one(client, (prompt, greedy), peer, 2 if number == 3 else 0)
                assert generation.error is None
                expected = oracle.greedy(prompt, 6)
                assert generation.token_ids == expected[: len(generation.token_ids)]

        await asyncio.gather(*(decode_there(number) for number in range(9)), *(prefill_there() for _ in range(4)))
        # Whatever these did: nine that start together outgrow the pool, which forces preemption.
        greedy = SamplingParams(temperature=0, max_tokens=110, ignore_eos=True)
        crowd = [[rng.randrange(3, VOCAB_SIZE) for _ in range(20)] for _ in range(9)]
        crowded = await asyncio.gather(*(run_one(other, (prompt, greedy), None, 0) for prompt in crowd))
        for prompt, generation in zip(crowd, crowded, strict=True):
            assert generation.token_ids == oracle.greedy(prompt, greedy.max_tokens, generation.token_ids)
        decode_load, both_load = await asyncio.gather(decode.wait_idle(), both.wait_idle())
        assert both_load.num_preemptions > 0, "the pool was meant to be too small"
        assert both_load.num_prefills == 0
        assert decode_load.handovers > 15
        assert decode_load.handover_failures == 0
        assert both_load.handovers == 0
