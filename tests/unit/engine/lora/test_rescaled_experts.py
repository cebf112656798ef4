"""Adapters of routed experts with DoRA, which PEFT cannot apply to transformers' parameters with all experts."""

from pathlib import Path
from shutil import copytree

import pytest
from safetensors.torch import load_file, save_file

from baton.engine.lora.adapter_files import TENSORS
from tests.adapters import make_adapter
from tests.checkpoints import make_checkpoint
from tests.unit.engine.lora.lora_rig import lora_engine, random_tokens, request, run
from tests.unit.engine.lora.test_expert_adapters import SEPARATE, use_products_of_gpus, with_adapters

PROMPT = random_tokens(40)
Rescaled = tuple[dict[str, Path], dict[str, list[int]]]  # adapters, and the tokens of requests


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3-moe", tmp_path_factory.mktemp("experts") / "model")


def with_weights_changed(model: Path, adapter: Path, directory: Path) -> Path:
    """Save a checkpoint to whose weights an adapter with DoRA is added."""
    copytree(model, directory)
    weights, tensors = load_file(model / "model.safetensors"), load_file(adapter / TENSORS)
    for name, magnitude in tensors.items():
        if (module := name.removesuffix(".lora_magnitude_vector")) != name:
            a, b = (tensors[f"{module}.lora_{side}.weight"] for side in "AB")
            weight = f"{module.removeprefix('base_model.model.')}.weight"
            changed = weights[weight] + 2 * b @ a
            weights[weight] = changed * (magnitude / changed.norm(dim=1)).unsqueeze(1)
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def rescaled(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Rescaled:
    """An adapter of experts with DoRA and one without, and the tokens of requests."""
    directory = tmp_path_factory.mktemp("rescaled")
    adapters = {
        "dora": make_adapter(model, directory / "dora", SEPARATE, seed=8, size=0.2, use_dora=True),
        "plain": make_adapter(model, directory / "plain", ["up_proj", "o_proj"], seed=9),
    }
    engine = with_adapters(model, adapters)
    tokens = {name: run(engine, request(name, PROMPT, name))[name] for name in adapters}
    return adapters, tokens | run(engine, request("base", PROMPT))


def check_mixed(model: Path, rescaled: Rescaled) -> None:
    adapters, tokens = rescaled
    assert len({tuple(each) for each in tokens.values()}) == 3
    engine = with_adapters(model, adapters, max_loras=2, max_cpu_loras=4)
    assert run(engine, *(request(name, PROMPT, name if name != "base" else None) for name in tokens)) == tokens


def test_tokens_are_those_of_changed_weights(model: Path, rescaled: Rescaled, tmp_path: Path) -> None:
    adapters, tokens = rescaled
    changed = lora_engine(with_weights_changed(model, adapters["dora"], tmp_path / "changed"))
    assert run(changed, request("a", PROMPT))["a"] == tokens["dora"]


def test_a_mixed_batch(model: Path, rescaled: Rescaled) -> None:
    check_mixed(model, rescaled)


def test_the_products_of_gpus(model: Path, rescaled: Rescaled, monkeypatch: pytest.MonkeyPatch) -> None:
    use_products_of_gpus(monkeypatch)
    check_mixed(model, rescaled)
