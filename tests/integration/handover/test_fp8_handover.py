"""Handover of FP8 KV, with the checkpoint's scales at both ends."""

from pathlib import Path

import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.handover.test_quantized_kv_handover import random_prompts
from tests.integration.worker_process import worker_processes
from tests.kv_scales import add_kv_scales
from tests.marks import slow_case

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
COMMON = ("--dtype=float32", "--max-num-batched-tokens=48", "--max-num-seqs=16")


def colocated(model: Path, prompts: list[list[int]]) -> list[list[int]]:
    """Return the outputs of one engine with FP8 KV, prompt by prompt."""
    engine = Engine(
        EngineConfig(
            model=str(model),
            dtype="float32",
            kv_cache_dtype="fp8",
            kv_cache_memory_bytes=16 << 20,
            max_num_batched_tokens=48,
            max_num_seqs=16,
            enable_prefix_caching=False,
        )
    )
    tokens: list[list[int]] = []
    for prompt in prompts:
        engine.add(Request(RequestId("one"), [*prompt], len(prompt), GREEDY))
        tokens.append([])
        while engine.has_work:
            outputs = engine.run(engine.schedule()).outputs
            tokens[-1] += [each.sampled.token_id for each in outputs if each.sampled is not None]
    return tokens


@pytest.mark.parametrize("transport", [slow_case("shared_memory"), slow_case("tcp"), "nixl"])
async def test_tokens_are_those_of_one_engine(transport: str, tmp_path: Path) -> None:
    model = add_kv_scales(make_checkpoint("qwen3", tmp_path / "model"))
    prompts = random_prompts(1, 1, 40, 100, 190)
    expected = colocated(model, prompts)
    flags = (f"--transport={transport}", *COMMON, "--kv-cache-dtype")
    shapes = (("prefill", *flags, "fp8"), ("decode", *flags, "fp8_e4m3"))  # two names of the same type
    async with worker_processes(model, tmp_path, *shapes) as (prefill, decode), decode_client(decode) as client:
        peer = await prefill.peer()
        for prompt, tokens in zip(prompts * 2, expected * 2, strict=True):  # then from prefix caches
            generation = await client.generate(prompt, GREEDY, peer)
            assert generation.token_ids == tokens
            assert generation.served_by.prefill_worker == peer.worker_id
        load = await decode.wait_idle()
        assert load.handover_failures == 0
        assert load.handover_bytes > 0
        await prefill.wait_idle()


async def test_workers_with_different_scales_do_not_hand_over(tmp_path: Path) -> None:
    models = [add_kv_scales(make_checkpoint("llama3", tmp_path / f"{first}"), first=first) for first in (0.02, 0.03)]
    flags = (*COMMON, "--kv-cache-dtype=fp8")
    [prompt] = random_prompts(3, 100)
    async with (
        worker_processes(models[0], tmp_path, ("prefill", *flags)) as (prefill,),
        worker_processes(models[1], tmp_path, ("decode", *flags)) as (decode,),
        decode_client(decode) as client,
    ):
        described = [await each.describe() for each in (prefill, decode)]
        assert described[0].fingerprint != described[1].fingerprint
        generation = await client.generate(prompt, GREEDY, await prefill.peer())
        load = await decode.wait_idle()
    assert [generation.token_ids] == colocated(models[1], [prompt])
    assert (load.handovers, load.handover_failures, load.handover_bytes) == (0, 1, 0)
