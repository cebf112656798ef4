"""A handover over every transport gives transformers' tokens."""

import asyncio
import random
from pathlib import Path

import pytest

from baton.engine.sampling.params import SamplingParams
from baton.protos import common_pb2
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import worker_processes
from tests.marks import slow_case
from tests.oracle import Oracle

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
CHUNKED = ("--max-num-batched-tokens=48", "--max-num-seqs=16")


def random_prompt(rng: random.Random, low: int, high: int) -> list[int]:
    return [rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(low, high))]


@pytest.mark.parametrize("transport", ["shared_memory", "tcp", "nixl", "auto", slow_case("staged")])
async def test_a_handover_over_every_transport(transport: str, tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    oracle = Oracle(model)
    rng = random.Random(1)
    flag = f"--transport={transport}"
    async with (
        worker_processes(model, tmp_path, ("prefill", flag, *CHUNKED), ("decode", flag, *CHUNKED)) as (prefill, decode),
        decode_client(decode) as client,
    ):
        peer = await prefill.peer()
        prompts = [random_prompt(rng, 1, 200) for _ in range(6)]
        generations = await asyncio.gather(*(client.generate(prompt, GREEDY, peer) for prompt in prompts))
        for prompt, generation in zip(prompts, generations, strict=True):
            assert generation.token_ids == oracle.greedy(prompt, GREEDY.max_tokens, generation.token_ids)
            assert generation.finish_reason == common_pb2.FINISH_REASON_LENGTH
            assert generation.served_by.prefill_worker == peer.worker_id
            assert generation.served_by.handed_over_tokens == len(prompt)
            assert generation.served_by_so_far == generation.served_by
            chosen = {"auto": "shared_memory", "staged": "staged_shared_memory"}.get(transport, transport)
            assert generation.served_by.kv_transport == chosen
        assert (await decode.wait_idle()).handovers == len(prompts)
        await prefill.wait_idle()
