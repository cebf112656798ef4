"""Handover between workers with packed weights gives the tokens of one engine."""

import random
from pathlib import Path

import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.settings.values import JsonText
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import worker_processes
from tests.marks import slow_case
from tests.unit.engine.packed.packed_writer import FORMATS, write_packed

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


def greedy(model: Path, prompt: list[int], hf_overrides: JsonText | None = None) -> list[int]:
    """Return the greedy output of one engine."""
    engine = Engine(
        EngineConfig(model=str(model), dtype="float32", kv_cache_memory_bytes=8 << 20, hf_overrides=hf_overrides)
    )
    engine.add(Request(RequestId("one"), [*prompt], len(prompt), GREEDY))
    tokens = []
    while engine.has_work:
        outputs = engine.run(engine.schedule()).outputs
        tokens += [each.sampled.token_id for each in outputs if each.sampled is not None]
    return tokens


@pytest.mark.parametrize(
    ("architecture", "fmt", "flags"),
    [
        slow_case("llama3", "awq", ("--tensor-parallel=2",)),
        slow_case("qwen3-moe", "awq", ()),
    ],
)
async def test_tokens_are_those_of_one_engine(
    architecture: str, fmt: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    model = write_packed(make_checkpoint(architecture, tmp_path / "source"), tmp_path, FORMATS[fmt]).packed
    common = ("--dtype=float32", "--max-num-batched-tokens=48", "--max-num-seqs=16", "--kv-shards=2")
    rng = random.Random(4)
    prompts = [[rng.randrange(3, VOCAB_SIZE) for _ in range(count)] for count in (1, 40, 150)]
    shapes = worker_processes(model, tmp_path, ("prefill", *common), ("decode", *common, *flags))
    async with shapes as (prefill, decode), decode_client(decode) as client:
        for prompt in prompts:
            generation = await client.generate(prompt, GREEDY, await prefill.peer())
            assert generation.token_ids == greedy(model, prompt)
        load = await decode.wait_idle()
    assert (load.handovers, load.handover_failures) == (len(prompts), 0)


async def test_workers_with_packed_and_dequantised_weights_do_not_hand_over(tmp_path: Path) -> None:
    stored = write_packed(make_checkpoint("llama3", tmp_path / "source"), tmp_path, FORMATS["gptq"])
    flags = ("--dtype=float32",)
    async with (
        worker_processes(stored.packed, tmp_path, ("prefill", *flags)) as (prefill,),
        worker_processes(stored.exact, tmp_path, ("decode", *flags)) as (decode,),
        decode_client(decode) as client,
    ):
        described = [await each.describe() for each in (prefill, decode)]
        assert described[0].fingerprint != described[1].fingerprint  # routers pair only equal ones
        generation = await client.generate(list(range(3, 90)), GREEDY, await prefill.peer())
        assert generation.served_by.prefill_worker == generation.served_by.decode_worker
        load = await decode.wait_idle()
    assert (load.handovers, load.handover_failures) == (0, 1)
