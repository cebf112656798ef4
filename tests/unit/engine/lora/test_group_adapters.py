"""Adapters of workers that share a model's experts: of all modules but the experts themselves."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from baton.engine.engine import Engine
from baton.engine.errors import InvalidAdapter
from baton.engine.lora.adapter_files import TENSORS
from tests.adapters import make_adapter
from tests.checkpoints import make_checkpoint
from tests.marks import slow_except
from tests.unit.engine.group_rig import TIMEOUT_S, Ranks
from tests.unit.engine.lora.lora_rig import GREEDY, lora_engine, random_tokens, request, run

TARGETS = ("q_proj", "v_proj", "o_proj", "q_b_proj", "kv_b_proj", "gate", "shared_expert_gate")
NAMES = (None, "first", "second")
MODELS = ("qwen3-moe", "deepseek-v3", "qwen2-moe")
PROMPTS = [random_tokens(count, seed=count) for count in (40, 3, 90)]


@pytest.fixture(params=slow_except(MODELS, ("deepseek-v3",)))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_checkpoint(request.param, tmp_path / "model")


@pytest.fixture
def group(model: Path) -> Iterator[Ranks]:
    made = Ranks(model, ["rank-0", "rank-1"], dtype="float32", enable_lora=True)
    yield made
    made.close()


def load(engine: Engine, adapters: dict[str, Path]) -> None:
    for name, path in adapters.items():
        engine.adapters.load(name, path)


def test_each_ranks_requests_have_their_adapters(model: Path, group: Ranks, tmp_path: Path) -> None:
    """The second rank also has steps without requests, after one with adapters."""
    adapters = {name: make_adapter(model, tmp_path / name, TARGETS, seed=seed) for seed, name in enumerate(NAMES[1:])}
    single = lora_engine(model)
    load(single, adapters)
    for rank in group.ranks.values():
        rank.call(lambda engine: load(engine, adapters)).result(TIMEOUT_S)
    expected = {}
    for place, (rank, length) in enumerate(zip(group.ranks.values(), (40, 5), strict=True)):
        sampling = replace(GREEDY, max_tokens=length)
        asked = [
            (f"{place} {name} {count}", prompt, name, sampling)
            for name in NAMES[place:]
            for count, prompt in enumerate(PROMPTS)
        ]
        expected |= run(single, *(request(*each) for each in asked))
        rank.add(*(request(*each) for each in asked))
    outputs = group.wait_for_all()
    assert {name: [each.token_id for each in tokens] for name, tokens in outputs.items()} == expected


def test_adapters_of_experts_are_refused_by_name(model: Path, group: Ranks, tmp_path: Path) -> None:
    adapter = make_adapter(model, tmp_path / "a", ["q_proj", "o_proj", "down_proj"])
    loading = group["rank-0"].call(lambda engine: engine.adapters.load("a", adapter))
    with pytest.raises(InvalidAdapter, match=r"mlp\.experts\.0\.down_proj' is a routed expert, which cannot be"):
        loading.result(TIMEOUT_S)


def test_routers_may_have_the_names_of_another_version_of_transformers(tmp_path: Path) -> None:
    model = make_checkpoint("mixtral", tmp_path / "model")
    adapter = make_adapter(model, tmp_path / "a", ["gate"])
    renamed = make_adapter(model, tmp_path / "b", ["gate"])
    tensors = load_file(renamed / TENSORS)
    save_file({name.replace(".block_sparse_moe.", ".mlp."): each for name, each in tensors.items()}, renamed / TENSORS)
    ranks = Ranks(model, ["rank-0", "rank-1"], dtype="float32", enable_lora=True)
    try:
        loading = [
            ranks["rank-0"].call(lambda engine, path=path: engine.adapters.load(path.name, path))
            for path in (adapter, renamed)
        ]
        first, second = (each.result(TIMEOUT_S) for each in loading)
        assert first.digest == second.digest
    finally:
        ranks.close()
