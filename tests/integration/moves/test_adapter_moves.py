"""A request with a LoRA adapter has the tokens of one engine, wherever it is computed, and however it moves."""

import asyncio
from pathlib import Path
from shutil import copytree, rmtree

import grpc
import pytest

from baton.engine.sampling.params import SamplingParams
from baton.protos import worker_pb2
from tests.adapters import ALL_TARGETS, LATENT_TARGETS, make_adapter
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import WorkerProcess, worker_processes
from tests.unit.engine.lora.lora_rig import lora_engine, random_tokens, request, run

pytestmark = pytest.mark.slow

PROMPT = random_tokens(90)
SAMPLING = SamplingParams(temperature=0, max_tokens=150, ignore_eos=True)
FLAGS = ("--enable-lora", "--dtype=float32", "--max-num-batched-tokens=48", "--max-num-seqs=16")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("moves") / "model")


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("adapters")
    everything = make_adapter(model, directory / "1", [*ALL_TARGETS, "embed_tokens", "lm_head"], seed=1)
    activated = make_adapter(model, directory / "3", seed=3, alora_invocation_tokens=PROMPT[60:62])
    return [everything, make_adapter(model, directory / "2", seed=2, use_dora=True), activated]


@pytest.fixture(scope="module")
def expected(model: Path, adapters: list[Path]) -> dict[str | None, list[int]]:
    """The tokens of the base model and of all adapters."""
    engine = lora_engine(model)
    for place, path in enumerate(adapters):
        engine.adapters.load(f"{place}", path)
    names = (None, "0", "1", "2")
    return {name: run(engine, request(str(name), PROMPT, name, SAMPLING))[str(name)] for name in names}


async def load(worker: WorkerProcess, name: str, path: Path) -> worker_pb2.Adapter:
    return (await worker.worker.LoadAdapter(worker_pb2.LoadAdapterRequest(name=name, path=str(path)))).adapter


SHARDED = "--tensor-parallel=2"
ONE_IN_MEMORY = ("--max-loras=1", "--max-cpu-loras=1")


@pytest.mark.parametrize(
    "flags",
    [(), ("--kv-cache-dtype=int8",), ("--kv-shards=2", SHARDED), ("--kv-shards=2", SHARDED, *ONE_IN_MEMORY)],
    ids=str,
)
async def test_handovers_and_pulled_kv(
    tmp_path: Path, model: Path, adapters: list[Path], expected: dict[str | None, list[int]], flags: tuple[str, ...]
) -> None:
    """All adapters in one batch: handed over, aborted in mid-stream, and continued elsewhere with the KV."""
    alike = [flag for flag in flags if flag != SHARDED]
    roles = (("prefill", *FLAGS, *alike), ("decode", *FLAGS, *flags), ("decode", *FLAGS, *alike))
    async with (
        worker_processes(model, tmp_path, *roles) as (prefill, first, second),
        decode_client(first) as client,
        decode_client(second) as other,
    ):
        known: dict[str | None, worker_pb2.Adapter | None] = {None: None}
        for name, path in zip(("0", "1", "2"), adapters, strict=True):
            known[name], *others = [await load(each, name, path) for each in (prefill, first, second)]
            assert others == [known[name]] * 2
        begun = {
            name: await client.submit(PROMPT, SAMPLING, await prefill.peer(), adapter=adapter)
            for name, adapter in known.items()
        }
        for generation in begun.values():
            while len(generation.token_ids) < 40:
                generation.progressed.clear()
                await generation.progressed.wait()
            served_by = generation.served_by_so_far
            assert served_by.handed_over_tokens == len(PROMPT) - served_by.decode_cached_tokens
            # The model's KV may be there, of which the activated adapter uses the blocks in front of token 60.
            assert served_by.decode_cached_tokens in ((0, 48) if name == "2" else (0,))
            await client.abort(generation)
        outputs = {}
        for name, generation in begun.items():
            continued = await other.submit(
                [*PROMPT, *generation.token_ids],
                SAMPLING,
                prefix_source=await first.peer(),
                num_prompt_tokens=len(PROMPT),
                adapter=known[name],
            )
            await continued.ended.wait()
            served_by = continued.served_by
            assert served_by.decode_cached_tokens + served_by.prefix_pulled_tokens > len(PROMPT)
            assert served_by.decode_cached_tokens == (48 if name == "2" else 0)
            outputs[name] = generation.token_ids + continued.token_ids
        if "int8" in str(flags):  # rounded KV changes some tokens
            assert len({tuple(each) for each in outputs.values()}) == 4
        else:
            assert outputs == expected
        for each in (prefill, first, second):
            await each.wait_idle()


@pytest.mark.parametrize(
    ("architecture", "flags"),
    [
        ("qwen3-moe", ()),
        ("qwen3-moe", (SHARDED, "--expert-parallel=2", "--kv-shards=2")),
        ("deepseek-v3", (SHARDED,)),
        ("deepseek-v32", ()),
    ],
    ids=str,
)
async def test_handovers_of_a_mixed_batch_with_adapters_of_experts(
    tmp_path: Path, architecture: str, flags: tuple[str, ...]
) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    engine, wanted = lora_engine(model), {}
    targets = [*ALL_TARGETS, *LATENT_TARGETS, "gate"]
    adapters = [make_adapter(model, tmp_path / f"{seed}", targets, seed=seed) for seed in range(2)]
    for place, path in enumerate(adapters):
        engine.adapters.load(f"{place}", path)
    for name in (None, "0", "1"):
        wanted[name] = run(engine, request(str(name), PROMPT, name, SAMPLING))[str(name)]
    assert len({tuple(each) for each in wanted.values()}) == 3
    roles = (("prefill", *FLAGS, *flags[2:]), ("decode", *FLAGS, *flags))
    async with worker_processes(model, tmp_path, *roles) as (prefill, decode), decode_client(decode) as client:
        known: dict[str | None, worker_pb2.Adapter | None] = {None: None}
        for name, path in zip(("0", "1"), adapters, strict=True):
            known[name] = await load(prefill, name, path)
            assert await load(decode, name, path) == known[name]
        begun = {
            name: await client.submit(PROMPT, SAMPLING, await prefill.peer(), adapter=adapter)
            for name, adapter in known.items()
        }
        for name, generation in begun.items():
            await generation.ended.wait()
            assert generation.served_by.handed_over_tokens == len(PROMPT)
            assert generation.token_ids == wanted[name]


async def test_a_prefill_worker_with_other_contents_is_not_used(
    tmp_path: Path, model: Path, adapters: list[Path], expected: dict[str | None, list[int]]
) -> None:
    roles = (("prefill", *FLAGS), ("prefill", *FLAGS), ("decode", *FLAGS))
    async with (
        worker_processes(model, tmp_path, *roles) as (wrong, right, decode),
        decode_client(decode) as client,
    ):
        await load(wrong, "0", adapters[1])
        await load(right, "0", adapters[0])
        adapter = await load(decode, "0", adapters[0])
        computed_here = await client.submit(PROMPT, SAMPLING, await wrong.peer(), adapter=adapter)
        await computed_here.ended.wait()
        assert computed_here.token_ids == expected["0"]
        assert computed_here.served_by.handed_over_tokens == 0
        assert (await wrong.wait_idle()).num_prefilled_tokens == 0
        handed_over = await client.submit(PROMPT, SAMPLING, await right.peer(), cache_salt="new", adapter=adapter)
        await handed_over.ended.wait()
        assert handed_over.token_ids == expected["0"]
        assert handed_over.served_by.handed_over_tokens == len(PROMPT)
        adapter.digest = "00"
        refused = await client.submit(PROMPT, SAMPLING, adapter=adapter)
        await refused.ended.wait()
        assert refused.error is not None
        assert refused.error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert "but the request needs '00'; load the same files on all workers" in refused.error.message


async def test_a_prefill_worker_that_cannot_read_the_adapter_again_is_not_used(
    tmp_path: Path, model: Path, adapters: list[Path], expected: dict[str | None, list[int]]
) -> None:
    path = copytree(adapters[0], tmp_path / "0")
    roles = (("prefill", *FLAGS, *ONE_IN_MEMORY), ("decode", *FLAGS))
    async with (
        worker_processes(model, tmp_path, *roles) as (prefill, decode),
        decode_client(decode) as client,
    ):
        adapter, *_ = [await load(each, "0", path) for each in (decode, prefill)]
        await load(prefill, "1", adapters[1])
        rmtree(path)
        computed_here = await client.submit(PROMPT, SAMPLING, await prefill.peer(), adapter=adapter)
        await computed_here.ended.wait()
        assert computed_here.token_ids == expected["0"]
        assert computed_here.served_by.handed_over_tokens == 0
        assert (await prefill.wait_idle()).num_prefilled_tokens == 0


async def test_a_running_request_keeps_an_unloaded_adapter(
    tmp_path: Path, model: Path, adapters: list[Path], expected: dict[str | None, list[int]]
) -> None:
    roles = (("decode", *FLAGS, "--tensor-parallel=2"),)
    async with worker_processes(model, tmp_path, *roles) as (decode,), decode_client(decode) as client:
        adapter = await load(decode, "0", adapters[0])
        running = await client.submit(PROMPT, SAMPLING, adapter=adapter)
        while len(running.token_ids) < 20:
            running.progressed.clear()
            await running.progressed.wait()
        await decode.worker.UnloadAdapter(worker_pb2.UnloadAdapterRequest(name="0"))
        replaced = await load(decode, "0", adapters[1])
        other = await client.submit(PROMPT, SAMPLING, adapter=replaced)
        await asyncio.gather(running.ended.wait(), other.ended.wait())
        assert running.token_ids == expected["0"]
        assert other.token_ids == expected["1"]
        with pytest.raises(grpc.aio.AioRpcError, match="does not exist"):
            await load(decode, "1", tmp_path / "nowhere")
