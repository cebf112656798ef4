"""Handover with int8 weights gives the tokens of one engine."""

import random
from pathlib import Path

import pytest
import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import worker_processes
from tests.marks import slow_case

pytestmark = pytest.mark.skipif(not torch.cpu._is_vnni_supported(), reason="products in int8 need VNNI")

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def greedy(model: Path, prompt: list[int], **options: str) -> list[int]:
    """Return the greedy output of one engine."""
    engine = Engine(EngineConfig(model=str(model), dtype="float32", kv_cache_memory_bytes=8 << 20, **options))  # type: ignore[arg-type]
    engine.add(Request(RequestId("one"), [*prompt], len(prompt), GREEDY))
    tokens = []
    while engine.has_work:
        outputs = engine.run(engine.schedule()).outputs
        tokens += [each.sampled.token_id for each in outputs if each.sampled is not None]
    return tokens


@pytest.mark.parametrize("architecture", [slow_case("llama3"), "qwen3-moe"])
async def test_tokens_are_those_of_one_engine(architecture: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    flags = (
        "--dtype=float32",
        "--quantization=int8",
        "--kv-cache-dtype=int8",
        "--max-num-batched-tokens=48",
        "--max-num-seqs=16",
    )
    rng = random.Random(4)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(count)] for count in (1, 40, 150)]
    shapes = worker_processes(model, tmp_path, ("prefill", *flags), ("decode", *flags))
    async with shapes as (prefill, decode), decode_client(decode) as client:
        for prompt in prompts:
            generation = await client.generate(prompt, GREEDY, await prefill.peer())
            assert generation.token_ids == greedy(model, prompt, quantization="int8", kv_cache_dtype="int8")
        load = await decode.wait_idle()
    assert (load.handovers, load.handover_failures) == (len(prompts), 0)


async def test_workers_with_different_weight_types_do_not_hand_over(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    workers = worker_processes(model, tmp_path, ("prefill",), ("decode", "--quantization=int8"))
    async with workers as (prefill, decode), decode_client(decode) as client:
        described = [await each.describe() for each in (prefill, decode)]
        assert described[0].fingerprint != described[1].fingerprint  # routers pair only equal ones
        generation = await client.generate(list(range(3, 90)), GREEDY, await prefill.peer())
        assert generation.served_by.prefill_worker == generation.served_by.decode_worker
        load = await decode.wait_idle()
    assert (load.handovers, load.handover_failures) == (0, 1)
