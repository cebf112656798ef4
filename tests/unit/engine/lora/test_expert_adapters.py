"""Adapters of experts, their routers and shared experts give PEFT's tokens, in both of its formats."""

import gc
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from baton.engine.errors import EngineError
from baton.engine.lora import adaptable
from baton.engine.lora.adaptable_layer import AdaptableExperts, AdaptableLayer
from baton.engine.lora.adapter_files import TENSORS
from baton.engine.lora.base import ModelAdapters
from baton.engine.lora.config import LoraConfig
from baton.engine.lora.stacked import StackedAdapters
from baton.engine.lora.stacked_experts import ExpertSlots
from tests.adapters import make_adapter, write_adapter
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case, slow_except
from tests.unit.engine.lora.lora_rig import GREEDY, lora_engine, random_tokens, request, run, with_adapters
from tests.unit.engine.lora.test_adapter_outputs import peft_tokens
from tests.unit.engine.tensor_rig import TensorRig

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # PEFT uses it
    pytest.mark.filterwarnings("ignore:The following .*_pattern keys did not match:RuntimeWarning"),  # of parameters
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
]

PROMPT = random_tokens(40)
NAMES = (None, "separate", "stacked", "attention")
SEPARATE = ("gate_proj", "up_proj", "down_proj", "gate", "q_proj")
FUSED = ("experts.gate_up_proj", "experts.down_proj")
# The parameters of routers, and modules that all tokens use.
FAMILIES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "qwen3-moe": ((*FUSED, "gate.weight"), ("o_proj",)),
    "mixtral": ((*FUSED, "gate.weight"), ("o_proj",)),
    "qwen2-moe": ((*FUSED, "gate.weight"), ("shared_expert_gate",)),
    "qwen3.5-moe": (FUSED, ("shared_expert_gate",)),
    "gpt-oss": ((*FUSED, "router.weight"), ("o_proj",)),
    "llama4": ((*FUSED, "router.weight"), ("shared_expert.up_proj", "shared_expert.down_proj")),
    "granite-moe": ((*FUSED, "router.weight"), ("o_proj",)),
    "olmoe": ((*FUSED, "gate.weight"), ("o_proj",)),
    "minimax-m2": ((*FUSED, "gate.weight"), ("o_proj",)),
    "gemma4-moe": (FUSED, ("mlp.up_proj", "router.proj")),
    "nemotron-h-moe": (("experts.up_proj", "experts.down_proj", "gate.weight"), ("shared_experts.up_proj",)),
    "ernie-moe": ((*FUSED, "gate.weight"), ("o_proj",)),
    "glm4-moe": (FUSED, ("o_proj",)),
    "deepseek-v3": (FUSED, ("kv_b_proj", "o_proj")),
    "qwen3-next": ((*FUSED, "gate.weight"), ("shared_expert_gate",)),
    "granite-hybrid-moe": ((*FUSED, "router.weight"), ("shared_mlp.output_linear",)),
}


def saved_by_peft(model: Path, directory: Path, family: str, size: float = 0.3, **options: object) -> Path:
    """Train an adapter at random, as PEFT makes it for transformers' parameters with all experts, and save it."""
    from peft import LoraConfig as PeftLora
    from peft import get_peft_model

    parameters, modules = FAMILIES[family]
    base: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    given: dict[str, Any] = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"} | options
    made = get_peft_model(base, PeftLora(target_modules=[*modules], target_parameters=[*parameters], **given))
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (each for each in made.parameters() if each.requires_grad):
            parameter += torch.randn(parameter.shape, generator=draw) * size
    made.save_pretrained(str(directory))
    return directory


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3-moe", tmp_path_factory.mktemp("experts") / "model")


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("adapters")
    return {
        "separate": make_adapter(model, directory / "separate", SEPARATE, seed=5),
        "stacked": saved_by_peft(model, directory / "stacked", "qwen3-moe"),
        "attention": make_adapter(model, directory / "attention", ["q_proj", "v_proj"], rank=8, seed=2),
    }


@pytest.fixture(scope="module")
def expected(model: Path, adapters: dict[str, Path]) -> dict[str, list[int]]:
    engine = with_adapters(model, adapters, enable_prefix_caching=False)
    tokens = {str(name): run(engine, request(str(name), PROMPT, name))[str(name)] for name in NAMES}
    assert len({tuple(each) for each in tokens.values()}) == len(NAMES)
    return tokens


@pytest.mark.parametrize("name", ["separate", "stacked"])
def test_both_formats_give_pefts_tokens(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]], name: str
) -> None:
    assert expected[name] == peft_tokens(model, adapters[name], PROMPT)


@pytest.mark.parametrize(
    "options",
    [
        {},
        slow_case({"async_scheduling": True}),
        slow_case({"max_num_batched_tokens": 24, "max_num_seqs": 5}),  # prompts in chunks, next to decodes
        slow_case({"max_loras": 1}),
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_a_mixed_batch_gives_each_request_its_tokens(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]], options: dict[str, object]
) -> None:
    engine = with_adapters(model, adapters, **options)
    for _ in range(2):  # the second time the prompts are in the prefix cache
        assert run(engine, *(request(str(name), PROMPT, name) for name in NAMES)) == expected


@pytest.mark.slow
def test_preempted_requests_keep_their_adapters(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    sampling = replace(GREEDY, max_tokens=40)
    whole = with_adapters(model, adapters)
    small = with_adapters(model, adapters, kv_cache_memory_bytes=20 * 16 * 3 * 2 * 2 * 16 * 4)
    wanted = {str(name): run(whole, request(str(name), PROMPT, name, sampling))[str(name)] for name in NAMES}
    assert run(small, *(request(str(name), PROMPT, name, sampling) for name in NAMES)) == wanted
    assert small.stats().num_preemptions > 0
    assert {name: tokens[:12] for name, tokens in wanted.items()} == expected


@pytest.mark.slow
def test_a_token_has_the_same_bits_in_any_batch(tmp_path: Path) -> None:
    """In bf16, with Baton's own products: a difference in a bit would change some of many tokens."""
    model = make_checkpoint("qwen3-moe", tmp_path / "model", dtype=torch.bfloat16)
    names = (None, "separate", "few")
    adapters = {
        "separate": make_adapter(model, tmp_path / "separate", SEPARATE, seed=5),
        "few": make_adapter(model, tmp_path / "few", ["down_proj"], seed=6, rank=3),
    }
    engine = with_adapters(model, adapters, dtype="bfloat16", enable_prefix_caching=False)
    requests = [(f"{name}-{seed}", random_tokens(30 + seed, seed), name) for name in names for seed in range(6)]
    alone = {name: run(engine, request(name, prompt, adapter))[name] for name, prompt, adapter in requests}
    assert run(engine, *(request(*each) for each in requests)) == alone
    assert run(engine, *(request(*each) for each in reversed(requests))) == alone


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_gives_pefts_tokens(tmp_path: Path, family: str) -> None:
    model = make_checkpoint(family, tmp_path / "model")
    options = {"rank_pattern": {"experts.down_proj": 2}, "alpha_pattern": {r"layers\.1\..*": 5}}
    adapter = saved_by_peft(model, tmp_path / "a", family, **options)
    outputs = run(with_adapters(model, {"a": adapter}), request("a", PROMPT, "a"), request("base", PROMPT))
    assert outputs["a"] == peft_tokens(model, adapter, PROMPT)
    assert outputs["a"] != outputs["base"]


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [["experts.gate_up_proj"], ["mlp.experts.down_proj"]], ids=str)
def test_one_parameter_of_two(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parameters: Any) -> None:
    monkeypatch.setitem(FAMILIES, "qwen3-moe", (parameters, ["o_proj"]))
    adapter = saved_by_peft(model, tmp_path / "a", "qwen3-moe", use_rslora=True)
    tokens = run(with_adapters(model, {"a": adapter}), request("a", PROMPT, "a"))["a"]
    assert tokens == peft_tokens(model, adapter, PROMPT)


@pytest.mark.parametrize("family", slow_except(("mixtral", "olmoe", "minimax-m2"), ("mixtral",)))
def test_separate_experts_of_other_names_give_pefts_tokens(tmp_path: Path, family: str) -> None:
    model = make_checkpoint(family, tmp_path / "model")
    targets = ("w1", "w2", "w3", "gate_proj", "up_proj", "down_proj", "k_proj")
    adapter = make_adapter(model, tmp_path / "a", targets, seed=7)
    tokens = run(with_adapters(model, {"a": adapter}), request("a", PROMPT, "a"))["a"]
    assert tokens == peft_tokens(model, adapter, PROMPT)


def transposed(a: Tensor, b: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Return the matrices of a parameter as PEFT in front of 0.19.1 saved them."""
    outputs, inputs = len(b), a.shape[1]
    by_expert = b.view(outputs, -1, num_experts).permute(2, 1, 0).reshape(-1, outputs)
    return by_expert.contiguous(), a.view(num_experts, -1, inputs).permute(2, 1, 0).reshape(inputs, -1).contiguous()


def test_the_layout_of_older_versions_of_peft(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]], tmp_path: Path
) -> None:
    """Some matrices of the model are square: only the version tells their layout."""
    tensors = load_file(adapters["stacked"] / TENSORS)
    for name in [each for each in tensors if ".experts." in each and "lora_A" in each]:
        other = name.replace("lora_A", "lora_B")
        tensors[name], tensors[other] = transposed(tensors[name], tensors[other], num_experts=8)
    config: dict[str, Any] = {
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "peft_version": "0.18.1", "target_modules": ["o_proj"],
        "target_parameters": [*FAMILIES["qwen3-moe"][0]],
    }  # fmt: skip
    write_adapter(tmp_path / "old", tensors, config)
    engine = with_adapters(model, {"old": tmp_path / "old"})
    assert run(engine, request("old", PROMPT, "old"))["old"] == expected["stacked"]


@pytest.fixture
def of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    use_products_of_gpus(monkeypatch)


def use_products_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let engines on CPUs use the products of GPUs."""
    config = LoraConfig(True, max_loras=2, max_cpu_loras=4)

    def stacked(layers: Sequence[AdaptableLayer], mixtures: Sequence[AdaptableExperts]) -> ModelAdapters:
        return StackedAdapters(layers, config, torch.float32, mixtures)

    monkeypatch.setattr(adaptable, "SegmentedAdapters", stacked)


@pytest.mark.usefixtures("of_gpus")
def test_the_products_of_gpus_give_the_same_tokens(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]]
) -> None:
    engine = with_adapters(model, adapters, max_loras=2, max_cpu_loras=4)
    assert run(engine, *(request(str(name), PROMPT, name) for name in NAMES)) == expected


@pytest.mark.usefixtures("of_gpus")
def test_slots_of_experts_that_do_not_fit_take_no_memory(
    model: Path, adapters: dict[str, Path], expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate, made = ExpertSlots.of, weakref.WeakSet[Tensor]()

    def allocate_three(*args: Any) -> ExpertSlots:
        if len(made) == 3:
            raise torch.OutOfMemoryError("no memory is left")
        slots = allocate(*args)
        made.add(slots.a)
        return slots

    engine = lora_engine(model, max_loras=2, max_cpu_loras=4)
    monkeypatch.setattr(ExpertSlots, "of", allocate_three)
    with pytest.raises(EngineError, match="OutOfMemoryError"):
        engine.adapters.load("separate", adapters["separate"])
    gc.collect()
    assert not made
    monkeypatch.setattr(ExpertSlots, "of", allocate)
    engine.adapters.load("separate", adapters["separate"])
    assert run(engine, request("a", PROMPT, "separate"))["a"] == expected["separate"]


@pytest.mark.slow
@pytest.mark.parametrize("has_whole_experts", [False, True])
@pytest.mark.parametrize("family", ["qwen3-moe", "qwen2-moe", "gpt-oss"])
def test_ranks_give_the_tokens_of_one(tmp_path: Path, family: str, has_whole_experts: bool) -> None:
    model = make_checkpoint(family, tmp_path / "model")
    adapters = {"stacked": saved_by_peft(model, tmp_path / "stacked", family)}
    if family == "qwen3-moe":
        adapters["separate"] = make_adapter(model, tmp_path / "separate", SEPARATE, seed=5)
    requests = [(str(name), PROMPT, name) for name in (None, *adapters)]
    expected = run(with_adapters(model, adapters), *(request(*each) for each in requests))
    rig = TensorRig(model, 2, enable_lora=True, has_whole_experts=has_whole_experts)
    try:
        registry = rig.engine.adapters
        for name, path in adapters.items():
            read = registry.read(name, path, number := registry.next_number())
            assert rig.follower(1).adapters.read(name, path, number).info == read.info
            rig.call(lambda engine, read=read: engine.adapters.insert(read))
        together = [request(*each) for each in requests]
        assert rig.call(lambda engine: run(engine, *together)) == expected
    finally:
        rig.close()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_quantised_experts_are_changed_too(model: Path, adapters: dict[str, Path], dtype: str) -> None:
    engine = with_adapters(model, adapters, quantization="int8", dtype=dtype)
    names = ("separate", "stacked")
    alone = {name: run(engine, request(name, PROMPT, name))[name] for name in names}
    assert (
        run(engine, *(request(name, PROMPT, name) for name in names), request("base", PROMPT)).items() > alone.items()
    )


def test_the_description_of_an_adapter(model: Path, adapters: dict[str, Path]) -> None:
    info = lora_engine(model).adapters.load("a", adapters["stacked"])
    assert info.target_modules == ("down_proj", "gate", "gate_up_proj", "o_proj")
    assert info.num_bytes == sum(each.nbytes for each in load_file(adapters["stacked"] / TENSORS).values())
