"""Models with recurrent state in an engine: tokens are transformers' in batches, after preemptions, from the cache."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import QueueFull, UnsupportedModel
from baton.engine.execution.batch import Batch
from baton.engine.execution.in_flight_step import LaunchedStep
from baton.engine.execution.load_plan import LoadPlan
from baton.engine.outputs import RequestOutput
from baton.engine.parallel.tensor_shard import TensorShard
from baton.engine.request import FinishReason, Request, RequestId, RequestStatus
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult
from baton.settings.values import OptionError
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.oracle import Oracle
from tests.paged_model import PagedModel

NUM_TOKENS = 24
CHECKPOINT_TOKENS = 32


@pytest.fixture(scope="module", params=["qwen3-next", *map(slow_case, ("nemotron-h", "falcon-h1", "mamba2"))])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp("recurrent") / "model")


@pytest.fixture(scope="module")
def oracle(model: Path) -> Oracle:
    return Oracle(model)


def greedy_of(oracle: Oracle, prompts: Mapping[str, list[int]], found: Mapping[str, list[int]]) -> dict[str, list[int]]:
    """Return the greedy continuations of the prompts; `found`: those that an engine found."""
    return {name: oracle.greedy(prompt, NUM_TOKENS, found[name]) for name, prompt in prompts.items()}


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(1000 * seed + count).choices(range(3, VOCAB_SIZE), k=count)


def engine_of(model: Path, **options: object) -> Engine:
    settings = {
        "dtype": "float32",
        "kv_cache_memory_bytes": 1 << 22,
        "max_num_batched_tokens": 40,
        "max_num_seqs": 8,
        "state_checkpoint_tokens": CHECKPOINT_TOKENS,
    }
    return Engine(EngineConfig(model=str(model), device="cpu", **(settings | options)))


def add(engine: Engine, name: str, prompt: list[int]) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    request = Request(RequestId(name), [*prompt], len(prompt), sampling)
    engine.add(request)
    return request


def drain(engine: Engine) -> dict[str, list[int]]:
    """Run the engine until it has no work; return the tokens of each request."""
    tokens: dict[str, list[int]] = {}
    while engine.has_work:
        for output in engine.run(engine.schedule()).outputs:
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
        engine.check_integrity()
    return tokens


def test_tokens_equal_transformers_in_batches_and_from_the_cache(model: Path, oracle: Oracle) -> None:
    prompts = {f"p{count}": random_tokens(count) for count in (1, 31, 64, 65, 150)}
    prompts["again"] = [*prompts["p150"][:130], *random_tokens(9)]
    for is_cached in (True, False):
        engine = engine_of(model, enable_prefix_caching=is_cached)
        for _ in range(2):
            for name, prompt in prompts.items():
                add(engine, name, prompt)
            tokens = drain(engine)
            assert tokens == greedy_of(oracle, prompts, tokens)
        assert (engine.scheduler.num_cached_tokens > 0) == is_cached


def test_a_hit_ends_at_the_last_checkpoint(model: Path, oracle: Oracle) -> None:
    engine, prompt = engine_of(model), random_tokens(150)
    add(engine, "first", prompt)
    drain(engine)
    first, more = engine.stats().num_prefilled_tokens, random_tokens(20)
    again = add(engine, "again", [*prompt, *more])
    tokens = drain(engine)
    assert tokens == greedy_of(oracle, {"again": [*prompt, *more]}, tokens)
    assert again.num_cached_tokens == 128
    assert engine.stats().num_prefilled_tokens - first == 150 + 20 - 128


def test_the_output_is_found_too(model: Path) -> None:
    engine, prompt = engine_of(model), random_tokens(50)
    add(engine, "first", prompt)
    turn = [*prompt, *drain(engine)["first"], *random_tokens(9)]  # 50 + 24 tokens: a checkpoint after 64
    again = add(engine, "again", turn)
    drain(engine)
    assert again.num_cached_tokens == 64


def test_preempted_requests_go_on_with_the_same_tokens(model: Path, oracle: Oracle) -> None:
    prompts = {f"p{index}": random_tokens(40 + index, seed=1) for index in range(6)}
    for is_cached in (True, False):
        engine = engine_of(model, enable_prefix_caching=is_cached, block_size=8)
        # A request takes 9 blocks for its KV, and as many as a state for its own and for a checkpoint.
        num_blocks = 16 + 2 * engine.groups.num_state_blocks
        engine = engine_of(
            model,
            enable_prefix_caching=is_cached,
            block_size=8,
            kv_cache_memory_bytes=num_blocks * engine.layout.block_bytes,
        )
        for name, prompt in prompts.items():
            add(engine, name, prompt)
        tokens = drain(engine)
        assert tokens == greedy_of(oracle, prompts, tokens)
        assert engine.scheduler.num_preemptions > 0


def run_with_a_late_mask(engine: Engine, position: int) -> list[RequestOutput]:
    """Run steps until the token at `position` has been sampled once without a mask; return the outputs."""
    outputs: list[RequestOutput] = []
    while True:
        [item] = engine.schedule().requests
        [result] = engine.runner.run([item])
        is_late = item.samples and item.start + item.num_new_tokens == position
        outputs += engine.scheduler.update([item], [StepResult() if is_late else result])
        engine.check_integrity()
        if is_late:
            return outputs


@pytest.mark.parametrize("position", [70, 75])
def test_a_token_that_is_sampled_again_does_not_advance_the_state_twice(
    model: Path, oracle: Oracle, position: int
) -> None:
    engine, prompt = engine_of(model), random_tokens(70)
    request = add(engine, "late", prompt)
    outputs = run_with_a_late_mask(engine, position)
    assert (request.status, request.num_computed_tokens) == (RequestStatus.WAITING, 0)
    early = [token for output in outputs for token in output.token_ids]
    tokens = early + drain(engine)["late"]
    assert tokens == oracle.greedy(prompt, NUM_TOKENS, tokens)
    assert request.num_preemptions == 1


def test_a_prompt_whose_blocks_are_read_fails_if_its_mask_is_late(model: Path) -> None:
    engine, prompt = engine_of(model), random_tokens(70)
    request = Request(RequestId("late"), prompt, 70, SamplingParams(temperature=0.0, max_tokens=1), keep_blocks=True)
    engine.add(request)
    last = run_with_a_late_mask(engine, 70)[-1]
    assert last.finish_reason is FinishReason.ERROR
    assert isinstance(last.error, QueueFull)
    assert len(request.block_table) == 5, "a peer may still be reading them"
    engine.abort(request.request_id)
    assert engine.blocks.num_free == engine.blocks.num_usable


@pytest.mark.parametrize("keeps_blocks", [False, slow_case(True)])
def test_a_step_that_runs_out_of_memory_is_not_repeated_on_its_states(
    model: Path, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, keeps_blocks: bool
) -> None:
    engine, prompts = engine_of(model), {name: random_tokens(70, seed) for seed, name in enumerate("ab")}
    for name, prompt in prompts.items():
        add(engine, name, prompt)
    launch, num_launched = engine.runner.launch, 0

    def failing_late(scheduled: Sequence[ScheduledRequest], previous: LaunchedStep | None = None) -> LaunchedStep:
        nonlocal num_launched
        launched, num_launched = launch(scheduled, previous), num_launched + 1
        if num_launched == 6:
            scheduled[0].request.keep_blocks = keeps_blocks
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launched

    monkeypatch.setattr(engine.runner, "launch", failing_late)
    if not keeps_blocks:
        tokens = drain(engine)
        assert tokens == greedy_of(oracle, prompts, tokens)
        assert engine.scheduler.num_preemptions > 0
        return
    errors = []
    while engine.has_work:
        errors += [each.error for each in engine.run(engine.schedule()).outputs if each.error is not None]
    assert [str(error) for error in errors] == ["a step ran out of GPU memory; try again"]
    assert engine.blocks.num_free < engine.blocks.num_usable, "a peer may still be reading the failed one's"
    for name in prompts:
        engine.abort(RequestId(name))
    assert engine.blocks.num_free == engine.blocks.num_usable


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.slow
def test_steps_that_run_out_of_memory_at_random_change_no_token(
    model: Path, oracle: Oracle, monkeypatch: pytest.MonkeyPatch, is_cached: bool
) -> None:
    rng, stem = random.Random(0), random_tokens(48)
    prompts = {f"p{index}": [*stem[: 16 * (index % 4)], *random_tokens(20 + index, seed=2)] for index in range(6)}
    engine = engine_of(model)
    num_bytes = (34 + 2 * engine.groups.num_state_blocks) * engine.layout.block_bytes
    engine, errors = engine_of(model, enable_prefix_caching=is_cached, kv_cache_memory_bytes=num_bytes), 0
    launch = engine.runner.launch

    def failing_at_random(scheduled: Sequence[ScheduledRequest], previous: LaunchedStep | None = None) -> LaunchedStep:
        nonlocal errors
        launched = launch(scheduled, previous)
        if sum(item.num_new_tokens for item in scheduled) > 1 and rng.random() < 0.3:
            errors += 1
            raise torch.OutOfMemoryError("CUDA out of memory")
        return launched

    monkeypatch.setattr(engine.runner, "launch", failing_at_random)
    for name, prompt in prompts.items():
        add(engine, name, prompt)
    tokens = drain(engine)
    assert tokens == greedy_of(oracle, prompts, tokens)
    assert errors > 2
    assert engine.blocks.num_free == engine.blocks.num_usable


def test_kv_in_a_block_that_held_a_state_is_not_spoiled(model: Path, oracle: Oracle) -> None:
    engine = engine_of(model)
    engine.pool.view(torch.uint8).fill_(0xFF)  # NaN in every type; the null block must stay zero
    engine.pool[0] = 0
    prompt = random_tokens(70)
    add(engine, "first", prompt)
    tokens = drain(engine)
    assert tokens == greedy_of(oracle, {"first": prompt}, tokens)


def test_blocks_of_tokens_to_come_do_not_spoil_others(tmp_path: Path) -> None:
    """One token in front of a checkpoint is computed as a decode: torch's attention gathers as much as for the longer
    context beside it.
    """
    model = make_checkpoint("qwen3.5-moe", tmp_path / "model")  # with recurrent layers behind attention
    tokens = []
    for leavings in (0, 0xFF):
        engine = engine_of(model, kv_cache_dtype="fp8", max_num_batched_tokens=3, max_num_seqs=2)
        engine.pool[1:].view(torch.uint8).fill_(leavings)
        add(engine, "longer", random_tokens(41))
        add(engine, "prompt", random_tokens(60))
        tokens.append(drain(engine))
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize(("dtype", "kv_dtype"), [("float32", "int8"), ("bfloat16", "auto")])
def test_states_are_stored_in_kv_blocks_of_any_type(model: Path, dtype: str, kv_dtype: str) -> None:
    prompt, tokens = random_tokens(100), []
    for is_cached in (True, False):
        engine = engine_of(model, dtype=dtype, kv_cache_dtype=kv_dtype, enable_prefix_caching=is_cached)
        for name in ("first", "again"):
            add(engine, name, prompt)
            tokens.append(drain(engine)[name])
    assert tokens == tokens[:1] * 4


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_rounded_weights_give_similar_logits(model: Path, quantization: str) -> None:
    if quantization == "int8" and not torch.cpu._is_vnni_supported():
        pytest.skip("products in int8 need VNNI")
    prompt = {"s": random_tokens(60)}
    usual = PagedModel(model, dtype="bfloat16").step(prompt)["s"]
    found = PagedModel(model, dtype="bfloat16", quantization=quantization).step(prompt)["s"]
    similarity = torch.nn.functional.cosine_similarity(found.flatten(), usual.flatten(), dim=0)
    assert similarity > {"int8": 0.97, "int4": 0.7}[quantization]


def test_a_waiting_request_awaits_blocks_for_its_state(model: Path) -> None:
    engine = engine_of(model)
    add(engine, "waiting", random_tokens(33))
    assert engine.stats().num_awaited_blocks == 3 + engine.groups.num_state_blocks


def test_the_blocks_of_states_go_to_the_device_with_a_batch(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, devices = engine_of(model), []
    forward = engine.runner.model.forward

    def sent_elsewhere(batch: Batch, pool: torch.Tensor) -> torch.Tensor:
        states, sent = batch.states, batch.on(torch.device("meta")).states
        assert states is not None
        assert sent is not None
        devices.extend(each.device.type for each in (sent.sources, sent.targets, sent.new_rows, sent.cleared))
        copied = states.on(torch.device("cpu"))
        assert torch.equal(copied.sources, states.sources)
        assert torch.equal(copied.targets, states.targets)
        assert torch.equal(copied.new_rows, states.new_rows)
        assert torch.equal(copied.cleared, states.cleared)
        return forward(batch, pool)

    monkeypatch.setattr(engine.runner.model, "forward", sent_elsewhere)
    for name in "ab":
        add(engine, name, random_tokens(40, ord(name)))
    drain(engine)
    assert set(devices) == {"meta"}


def test_steps_are_not_launched_ahead(model: Path) -> None:
    assert not engine_of(model, async_scheduling=True).looks_ahead


def test_what_is_not_implemented_is_refused_by_name(model: Path) -> None:
    config = EngineConfig(model=str(model), device="cpu", allow_mixed_quantization=True)
    with pytest.raises(
        UnsupportedModel, match="allow_mixed_quantization is not supported for the recurrent layers of "
    ):
        LoadPlan.of(config, read_model_config(model), TensorShard(), is_expert_parallel=False)


def test_checkpoints_are_whole_blocks() -> None:
    with pytest.raises(
        OptionError, match=r"state_checkpoint_tokens is 40, but must be a multiple of block_size \(16\)"
    ):
        EngineConfig(model="any", device="cpu", state_checkpoint_tokens=40)
    assert EngineConfig(model="any", device="cpu", block_size=24).checkpoint_tokens == 528
