"""One model divided among ranks: the logits of one rank up to rounding, the same tokens, the same bits every time."""

import random
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.checkpoint.weights import Weights
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError, GroupBroken, UnsupportedModel
from baton.engine.experts.group import ExpertGroup
from baton.engine.families.tensor_names import ExpertNames
from baton.engine.layers.expert_reader import ExpertReader
from baton.engine.loop import EngineLoop
from baton.engine.parallel.group_view import GroupView
from baton.engine.parallel.tensor_parallel import TensorGroup
from baton.engine.parallel.tensor_shard import TensorShard
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case, slow_except
from tests.paged_model import CPU, PagedModel
from tests.unit.engine.group_rig import Group, Member
from tests.unit.engine.tensor_rig import TIMEOUT_S, TensorRig

ATOL = 1e-4  # logits have a standard deviation of about 1.2
MODELS = ("llama3", "llama-biased", "qwen2", "qwen3", "mixtral", "qwen3-moe", "deepseek-v2-lite", "deepseek-v3")

OTHERS = (
    *("phi4-mini", "olmo2", "qwen2-moe", "granite-moe", "minimax-m2", "gemma3", "gemma4", "gemma4-large", "gpt-oss"),
    *("deepseek-v32", "gemma4-moe"),
)
REST = (
    *("phi3", "smollm3", "granite", "glm", "glm4", "glm4-moe", "seed-oss", "ernie", "ernie-moe", "olmoe"),
    *("gemma2", "olmo3", "llama4"),
)
OF_ANY_SIZE = tuple(each for each in (*MODELS, *OTHERS, *REST) if each != "gemma4-large")  # for 2 ranks only
DISTINCT = ("llama3", "qwen2", "mixtral", "deepseek-v3")  # one for each way to divide a model's matrices

Rigs = Callable[..., TensorRig]


@pytest.fixture(scope="module", params=MODELS)  # a test may name others
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(request.param, tmp_path_factory.mktemp(request.param) / "model")


@pytest.fixture(scope="module")
def llama3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("llama3", tmp_path_factory.mktemp("llama3") / "model")


@pytest.fixture
def rigs() -> Iterator[Rigs]:
    """Factory of groups of ranks that are closed after the test."""
    made: list[TensorRig] = []

    def make(*args: Any, **kwargs: Any) -> TensorRig:
        made.append(TensorRig(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.close()


class Rank0PagedModel(PagedModel):
    """Drives the model of a group's rank 0 like a single-rank model."""

    def __init__(self, model: Path, rig: TensorRig) -> None:
        super().__init__(model, dtype="float32")
        self.model, self.pool, self.groups = rig.engine.runner.model, rig.engine.pool, rig.engine.groups


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def random_tokens(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


def mixed_steps(paged: PagedModel) -> dict[str, Tensor]:
    """Return the logits of sequences computed in random mixtures of chunks and decodes."""
    draw = random.Random(4)
    sequences = {f"s{index}": random_tokens(length, index) for index, length in enumerate((131, 64, 17, 90))}
    done = dict.fromkeys(sequences, 0)
    logits: dict[str, list[Tensor]] = {name: [] for name in sequences}
    while waiting := [name for name in sequences if done[name] < len(sequences[name])]:
        counts = {name: draw.choice((1, 1, 2, 23, 60)) for name in draw.sample(waiting, draw.randint(1, len(waiting)))}
        step = {name: sequences[name][done[name] : done[name] + count] for name, count in counts.items()}
        for name, part in paged.step(step).items():
            logits[name].append(part)
            done[name] += len(step[name])
    return {name: torch.cat(parts) for name, parts in logits.items()}


def make_requests(count: int, temperature: float) -> list[Request]:
    draw = random.Random(8)
    requests = []
    for index in range(count):
        prompt = random_tokens(draw.choice((1, 3, 17, 64, 130)), 100 + index)
        sampling = SamplingParams(temperature=temperature, seed=index, max_tokens=24, ignore_eos=True, logprobs=0)
        requests.append(Request(RequestId(f"r{index}"), prompt, len(prompt), sampling))
    return requests


def serve(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    """Run requests to their end and return the output tokens of each."""
    outputs: dict[str, list[int]] = {request.request_id: [] for request in requests}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for each in engine.run(engine.schedule()).outputs:
            if each.sampled is not None:
                outputs[each.request_id].append(each.sampled.token_id)
    engine.check_integrity()
    return outputs


# With 4 ranks, models with 2 KV heads store each head on two ranks.
@pytest.mark.parametrize(
    ("model", "size"),
    [
        *((name, 2) for name in MODELS),
        *((name, 4) for name in DISTINCT),
        *(slow_case(name, 4) for name in MODELS if name not in DISTINCT),
        *((name, 2) for name in OTHERS),
        ("olmo2", 4),
        *(slow_case(name, 2) for name in REST),
        *(slow_case(name, 4) for name in OF_ANY_SIZE if name not in (*MODELS, "olmo2")),
    ],
    indirect=["model"],
)
def test_logits_equal_those_of_one_rank_up_to_rounding(model: Path, size: int, rigs: Rigs) -> None:
    rig = rigs(model, size)
    rank0 = Rank0PagedModel(model, rig)
    logits = rig.call(lambda _: mixed_steps(rank0))
    for name, expected in mixed_steps(PagedModel(model)).items():
        assert expected.std() > 0.5
        torch.testing.assert_close(logits[name], expected, atol=ATOL, rtol=0)


@pytest.mark.parametrize("model", slow_except(OF_ANY_SIZE, (*DISTINCT, "olmo2")), indirect=True)
@pytest.mark.parametrize("size", [2, slow_case(4)])
def test_greedy_tokens_equal_those_of_one_rank(model: Path, size: int, rigs: Rigs) -> None:
    expected = serve(
        Engine(EngineConfig(model=str(model), dtype="float32", kv_cache_memory_bytes=1 << 22)), make_requests(9, 0.0)
    )
    assert len(set().union(*expected.values())) > 16
    rig = rigs(model, size)
    assert rig.call(lambda engine: serve(engine, make_requests(9, 0.0))) == expected


@pytest.mark.parametrize("model", slow_except(MODELS, {"llama3", "deepseek-v3"}), indirect=True)
@pytest.mark.parametrize("dtype", [slow_case("float32"), "bfloat16"])
def test_two_runs_give_the_same_bits(model: Path, dtype: str, rigs: Rigs) -> None:
    runs = []
    for _ in range(2):
        rig = rigs(model, 4, dtype=dtype)
        rank0 = Rank0PagedModel(model, rig)
        runs.append(rig.call(lambda _, rank0=rank0: mixed_steps(rank0)))
    assert all(torch.equal(runs[0][name], runs[1][name]) for name in runs[0])


def test_bfloat16_is_about_as_exact_as_on_one_rank(llama3: Path, rigs: Rigs) -> None:
    exact, one = mixed_steps(PagedModel(llama3)), mixed_steps(PagedModel(llama3, dtype="bfloat16"))
    rig = rigs(llama3, 4, dtype="bfloat16")
    rank0 = Rank0PagedModel(llama3, rig)
    four = rig.call(lambda _: mixed_steps(rank0))
    errors = [torch.cat([logits[name] - exact[name] for name in exact]).abs().median() for logits in (one, four)]
    assert errors[1] < 1.3 * errors[0]


def test_each_rank_loads_only_its_shard(llama3: Path, rigs: Rigs, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    one = Engine(EngineConfig(model=str(llama3), dtype="float32", kv_cache_memory_bytes=1 << 21))
    rig = rigs(llama3, 2)
    assert rig.engine.layout.block_bytes * 2 == one.layout.block_bytes
    assert len(rig.engine.pool) == len(rig.follower(1).pool)
    assert len(rig.engine.pool) // 2 == len(one.pool)  # with equal memory
    read = [float(record.message.split()[1]) for record in caplog.records if "MB of weights in" in record.message]
    assert len(read) == 3
    assert max(read[1:]) < 0.6 * read[0]


def test_fused_and_separate_tensors_give_the_same_expert_shards(tmp_path: Path) -> None:
    separate = make_checkpoint("qwen3-moe", tmp_path / "separate")
    tensors = load_file(separate / "model.safetensors")
    prefix, names = "model.layers.1.mlp", ("gate_proj", "up_proj", "down_proj")
    gate, up, down = (
        torch.stack([tensors.pop(f"{prefix}.experts.{expert}.{name}.weight") for expert in range(8)]) for name in names
    )
    fused = shutil.copytree(separate, tmp_path / "fused")
    save_file(
        tensors | {f"{prefix}.experts.gate_up_proj": torch.cat([gate, up], dim=1), f"{prefix}.experts.down_proj": down},
        fused / "model.safetensors",
    )
    moe = read_model_config(separate).moe
    assert moe is not None
    for directory in (separate, fused):
        weights = Weights(directory, torch.float32, CPU)
        part = ExpertReader(weights, prefix, 64, moe, ExpertNames(), TensorShard(1, 4)).read(5)
        assert torch.equal(part.gate_up.weight, torch.cat([gate[5, 8:16], up[5, 8:16]]))
        assert torch.equal(part.down.weight, down[5, :, 8:16])


def test_all_ranks_store_their_shards_in_the_same_blocks(llama3: Path, rigs: Rigs) -> None:
    one = Engine(EngineConfig(model=str(llama3), dtype="float32", kv_cache_memory_bytes=1 << 21, num_threads=1))
    rig = rigs(llama3, 2)
    for engine in (one, rig.engine):
        rig.call(lambda _, engine=engine: serve(engine, make_requests(3, 0.0)))
    parts = [pool[: len(one.pool)] for pool in (rig.engine.pool, rig.follower(1).pool)]
    # [num_blocks, 1, num_layers, 2, num_kv_heads, block_size, head_dim]
    assert one.pool.count_nonzero() > 10_000
    torch.testing.assert_close(torch.cat(parts, dim=4), one.pool, atol=ATOL, rtol=0)


def test_sizes_that_cannot_be_divided_are_named(tmp_path: Path, llama3: Path, rigs: Rigs) -> None:
    odd = make_checkpoint("llama3", tmp_path / "odd", vocab_size=321, intermediate_size=90)
    with pytest.raises(UnsupportedModel, match=r"among 4 ranks: vocab_size 321 and intermediate_size 90$"):
        _ = rigs(odd, 4).engine
    with pytest.raises(
        UnsupportedModel, match=r"among 3 ranks: num_attention_heads 4, vocab_size 320 and num_key_value_heads 2$"
    ):
        _ = rigs(llama3, 3).engine
    experts = make_checkpoint("deepseek-v3", tmp_path / "experts", moe_intermediate_size=30)
    with pytest.raises(UnsupportedModel, match=r"among 4 ranks: intermediate size of an expert 30$"):
        _ = rigs(experts, 4).engine
    shared = make_checkpoint("qwen2-moe", tmp_path / "shared", shared_expert_intermediate_size=34)
    with pytest.raises(UnsupportedModel, match=r"among 4 ranks: intermediate size of the shared experts 34$"):
        _ = rigs(shared, 4).engine


def test_expert_and_tensor_parallelism_are_refused_together(tmp_path: Path, rigs: Rigs) -> None:
    model = make_checkpoint("mixtral", tmp_path / "model")
    rig = rigs(model, 2)
    experts = ExpertGroup(Member(Group(), "a"), "127.0.0.1", CPU)
    _ = rig.engine
    with pytest.raises(UnsupportedModel, match="cannot be used together"):
        Engine(rig.config, group=experts, tensor=rig.tensors[0])


def test_ranks_with_different_models_are_refused(llama3: Path, tmp_path: Path, rigs: Rigs) -> None:
    for difference, named in (
        ({"max_position_embeddings": 256}, r"max_model_len \(256, not 512\)"),
        ({"rms_norm_eps": 1e-4}, r"model, dtype or block size \([0-9a-f]+, not [0-9a-f]+\)"),
    ):
        other = make_checkpoint("llama3", tmp_path / named[:5], seed=1, **difference)
        with pytest.raises(EngineError, match=f"rank 1 differs from rank 0 in {named}"):
            _ = rigs(llama3, 2, others=other).engine


def test_ranks_with_different_weights_are_refused_after_loading(llama3: Path, tmp_path: Path, rigs: Rigs) -> None:
    other = make_checkpoint("llama3", tmp_path / "other", seed=1)
    with pytest.raises(
        EngineError, match=r"rank 1 differs from rank 0 in weights \([0-9a-f]+, not [0-9a-f]+\): ranks of one model"
    ):
        _ = rigs(llama3, 2, others=other).engine


def test_ranks_share_the_cores_of_their_own_node() -> None:
    for rank, place in enumerate([(0, 2), (1, 2), (0, 2), (1, 2)]):
        tensor = TensorGroup(Member(Group(), "a"), "127.0.0.1", CPU, 4, ranks_per_node=2)
        tensor._ranks._view = GroupView(1, ("a", "b", "c", "d"), rank)
        assert tensor.place_on_node == place


def test_too_many_members_are_refused(llama3: Path, rigs: Rigs) -> None:
    with pytest.raises(EngineError, match="of 2 ranks has 3 members"):
        _ = rigs(llama3, 2, members=3).engine


def lose(rig: TensorRig, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a follower die after its next step."""

    def die() -> None:
        raise SystemExit

    monkeypatch.setattr(rig.tensors[rank], "receive_broadcast", die)


def test_a_lost_follower_ends_a_step_on_all_ranks(llama3: Path, rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rigs(llama3, 4)
    rig.call(lambda engine: serve(engine, make_requests(2, 0.0)))
    lose(rig, 2, monkeypatch)
    with pytest.raises(GroupBroken):
        rig.call(lambda engine: serve(engine, make_requests(2, 0.0)))
    rig.call(lambda engine: engine.close())
    for other in (rig.ended[0], rig.ended[2]):
        assert isinstance(other.exception(TIMEOUT_S), GroupBroken)


def test_a_lost_follower_ends_all_ranks_that_wait_for_a_step(
    llama3: Path, rigs: Rigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Followers detect the loss by their connections; rank 0, which waits for requests, by the membership."""
    rig = rigs(llama3, 4)
    failed: Future[BaseException] = Future()
    loop = EngineLoop(rig.engine, lambda _: None, failed.set_result)
    for rank in range(1, 4):
        wait_until(lambda rank=rank: rig.follower(rank)._tensor.is_waiting)  # type: ignore[misc]
    lose(rig, 2, monkeypatch)
    loop.start()
    prompt = Request(RequestId("one step"), [5], 1, SamplingParams(max_tokens=1))
    loop.call(lambda engine: engine.add(prompt)).result(TIMEOUT_S)
    for other in (rig.ended[0], rig.ended[2]):
        assert isinstance(other.exception(TIMEOUT_S), GroupBroken)
    assert not failed.done()
    rig.group.set_members(*rig.names[:2], *rig.names[3:])
    loop.call(lambda engine: engine.woken(rig.group.epoch, 0))
    assert isinstance(failed.result(TIMEOUT_S), GroupBroken)


def test_a_step_that_fails_on_one_rank_fails_on_all(llama3: Path, rigs: Rigs, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = rigs(llama3, 2)

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(rig.follower(1)._model, "forward", fail)
    with pytest.raises(GroupBroken):
        rig.call(lambda engine: serve(engine, make_requests(2, 0.0)))
    assert isinstance(rig.ended[0].exception(TIMEOUT_S), MemoryError)


def test_followers_end_when_the_first_rank_does(llama3: Path, rigs: Rigs) -> None:
    rig = rigs(llama3, 2)
    rig.call(lambda engine: serve(engine, make_requests(2, 0.0)))
    wait_until(lambda: rig.follower(1).turn_s == 0)
    rig.call(lambda engine: engine.close())
    assert isinstance(rig.ended[0].exception(TIMEOUT_S), GroupBroken)
