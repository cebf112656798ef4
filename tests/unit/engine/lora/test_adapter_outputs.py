"""Outputs with adapters are those of PEFT on the same checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from baton.engine.engine import Engine
from baton.engine.lora.adapter_files import TENSORS
from tests.adapters import ALL_TARGETS, LATENT_TARGETS, make_adapter
from tests.checkpoints import make_checkpoint
from tests.marks import slow_except
from tests.unit.engine.lora.lora_rig import GREEDY, lora_engine, random_tokens, request, run

pytestmark = [
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning"),  # PEFT uses it
    pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`:UserWarning"),
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning"),
]

PROMPT = random_tokens(40)
LATENT = (*LATENT_TARGETS, "o_proj")
# Families whose projections are named, fused or scaled in other ways than Llama's.
FAMILIES = {
    "llama3": ALL_TARGETS,
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "qwen3": ALL_TARGETS,
    "llama-biased": ALL_TARGETS,
    "gemma2": ALL_TARGETS,
    "gemma3": ALL_TARGETS,
    "granite": ALL_TARGETS,
    "glm4": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"),
    "olmo2": ALL_TARGETS,
    "gpt-oss": ALL_TARGETS[:4],
    "mixtral": ALL_TARGETS[:4],
    "qwen3-moe-mixed": ALL_TARGETS[:4],
    "qwen3-next": (*ALL_TARGETS[:4], "out_proj", "in_proj_qkvz", "in_proj_ba"),
    "qwen3.5": (*ALL_TARGETS, "out_proj", "in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
    "nemotron-h": ("in_proj", "q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj"),
    "nemotron-h-moe": ("in_proj", "q_proj", "o_proj"),
    "granite-hybrid": ("in_proj", "out_proj", *ALL_TARGETS[:4]),
    "bamba": ("in_proj", "out_proj", *ALL_TARGETS),
    "falcon-h1": ("in_proj", *ALL_TARGETS),
    "mamba2": ("in_proj",),
    "deepseek-v2": LATENT,
    "deepseek-v2-lite": ("q_proj", *LATENT[2:]),
    "deepseek-v3": LATENT,
    "deepseek-v32": (*LATENT, "wq_b", "wk", "weights_proj"),
    "glm4-moe-lite": LATENT,
}


def peft_tokens(model: Path, adapter: Path, prompt: list[int]) -> list[int]:
    """Return PEFT's greedy continuation of a prompt."""
    from peft import PeftModel  # heavy

    base: Any = AutoModelForCausalLM.from_pretrained(model, attn_implementation="eager", dtype=torch.float32)
    tokens = [*prompt]
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(base, str(adapter))
        for _ in range(GREEDY.max_tokens):
            tokens.append(int(adapted(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return lora_engine(model, max_cpu_loras=64)


@pytest.fixture(scope="module")
def base(engine: Engine) -> list[int]:
    return run(engine, request("base", PROMPT))["base"]


@pytest.mark.parametrize("target", slow_except(ALL_TARGETS, ("k_proj", "o_proj", "up_proj")))
def test_each_module_gives_pefts_tokens(
    model: Path, engine: Engine, base: list[int], tmp_path: Path, target: str
) -> None:
    adapter = make_adapter(model, tmp_path / target, [target], seed=5, size=0.5)
    engine.adapters.load(target, adapter)
    tokens = run(engine, request(target, PROMPT, target))[target]
    assert tokens == peft_tokens(model, adapter, PROMPT)
    assert tokens != base


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"use_rslora": True}, id="rslora"),
        pytest.param({"alpha_pattern": {"v_proj": 3, r"layers\.1\.mlp.*": 40}}, id="alpha_pattern"),
        pytest.param({"ranks": {"k_proj": 2, "down_proj": 7}}, id="rank_pattern"),
        pytest.param({"use_dora": True}, id="use_dora"),
        pytest.param({"layers_to_transform": [0, 2]}, id="layers_to_transform", marks=pytest.mark.slow),
    ],
)
def test_options_give_pefts_tokens(
    model: Path, engine: Engine, base: list[int], tmp_path: Path, options: dict[str, Any]
) -> None:
    name = "-".join(options)
    adapter = make_adapter(model, tmp_path / name, seed=6, size=0.2, **options)
    if "layers_to_transform" in options:
        tensors = load_file(adapter / TENSORS)
        save_file({name: each for name, each in tensors.items() if ".layers.1." not in name}, adapter / TENSORS)
    engine.adapters.load(name, adapter)
    tokens = run(engine, request(name, PROMPT, name))[name]
    assert tokens == peft_tokens(model, adapter, PROMPT)
    assert tokens != base


@pytest.mark.parametrize("target", slow_except(ALL_TARGETS, ("v_proj", "down_proj")))
def test_dora_of_each_module_gives_pefts_tokens(
    model: Path, engine: Engine, base: list[int], tmp_path: Path, target: str
) -> None:
    adapter = make_adapter(model, tmp_path / target, [target], seed=8, size=0.5, use_dora=True)
    name = f"{target} with DoRA"
    engine.adapters.load(name, adapter)
    tokens = run(engine, request(name, PROMPT, name))[name]
    assert tokens == peft_tokens(model, adapter, PROMPT)
    assert tokens != base


@pytest.mark.parametrize("family", slow_except(("llama3", "qwen3", "gemma3", "granite"), ("qwen3",)))
@pytest.mark.parametrize("is_tied", slow_except((False, True), (True,)))
def test_embeddings_and_output_layers_give_pefts_tokens(tmp_path: Path, family: str, is_tied: bool) -> None:
    model = make_checkpoint(family, tmp_path / "model", tie_word_embeddings=is_tied)
    engine = lora_engine(model)
    for targets in (["embed_tokens"], ["lm_head"], ["embed_tokens", "lm_head", "q_proj"]):
        name = "-".join(targets)
        adapter = make_adapter(model, tmp_path / name, targets, seed=9, size=0.3)
        engine.adapters.load(name, adapter)
        outputs = run(engine, request(name, PROMPT, name), request("base", PROMPT))
        assert outputs[name] == peft_tokens(model, adapter, PROMPT)
        assert outputs[name] != outputs["base"]


def test_adapters_that_peft_saved(model: Path, engine: Engine, base: list[int], tmp_path: Path) -> None:
    """PEFT's files have copies of the base weights next to the matrices of embeddings."""
    from peft import LoraConfig, get_peft_model

    cases = {"embeddings": (["embed_tokens", "lm_head", "q_proj"], False), "dora": (["lm_head", "up_proj"], True)}
    for name, (targets, use_dora) in cases.items():
        untrained: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        config = LoraConfig(r=4, target_modules=targets, use_dora=use_dora, task_type="CAUSAL_LM")
        made = get_peft_model(untrained, config)
        draw = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in (each for each in made.parameters() if each.requires_grad):
                parameter += torch.randn(parameter.shape, generator=draw) * 0.3
        made.save_pretrained(str(tmp_path / name))
        engine.adapters.load(name, tmp_path / name)
        tokens = run(engine, request(name, PROMPT, name))[name]
        assert tokens == peft_tokens(model, tmp_path / name, PROMPT)
        assert tokens != base


@pytest.mark.slow
@pytest.mark.parametrize(
    "family",
    ["phi3", "qwen3", "llama-biased", "gemma2", "glm4", "gpt-oss", "qwen3-next", "bamba", "deepseek-v2-lite"],
)
def test_dora_of_each_family_gives_pefts_tokens(tmp_path: Path, family: str) -> None:
    model = make_checkpoint(family, tmp_path / "model")
    engine = lora_engine(model)
    adapter = make_adapter(model, tmp_path / "adapter", FAMILIES[family], seed=7, size=0.3, use_dora=True)
    engine.adapters.load("a", adapter)
    assert run(engine, request("a", PROMPT, "a"))["a"] == peft_tokens(model, adapter, PROMPT)


@pytest.mark.parametrize("family", slow_except(FAMILIES, ("qwen3-next", "nemotron-h")))
def test_each_family_gives_pefts_tokens(tmp_path: Path, family: str) -> None:
    model = make_checkpoint(family, tmp_path / "model")
    engine = lora_engine(model)
    adapter = make_adapter(model, tmp_path / "adapter", FAMILIES[family], seed=7, size=0.3)
    engine.adapters.load("a", adapter)
    outputs = run(engine, request("a", PROMPT, "a"), request("base", PROMPT))
    assert outputs["a"] == peft_tokens(model, adapter, PROMPT)
    assert outputs["a"] != outputs["base"]


def test_adapters_in_bfloat16_and_in_float32_are_close_to_pefts(model: Path, tmp_path: Path) -> None:
    """A base in bfloat16 rounds differently: only the first token is compared, whose logits differ clearly."""
    adapter = make_adapter(model, tmp_path / "all", seed=1)
    expected = peft_tokens(model, adapter, PROMPT)[0]
    for dtype in ("auto", "float32"):
        engine = lora_engine(model, dtype="bfloat16", lora_dtype=dtype)
        engine.adapters.load("all", adapter)
        assert run(engine, request("all", PROMPT, "all"))["all"][0] == expected
