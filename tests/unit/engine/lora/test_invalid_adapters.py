"""Each adapter that cannot be used is refused with the reason."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from baton.engine.engine import Engine
from baton.engine.errors import EngineError, InvalidAdapter
from baton.engine.lora import registry
from baton.engine.lora.adapter_files import AdapterFiles
from tests.adapters import make_adapter
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.unit.engine.lora.lora_rig import lora_engine

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
LAYER = "base_model.model.model.layers.0"


@pytest.fixture(scope="module")
def engine(model: Path) -> Engine:
    return lora_engine(model)


@pytest.fixture
def adapter(model: Path, tmp_path: Path) -> Path:
    return make_adapter(model, tmp_path / "adapter", ["q_proj", "down_proj"])


def refusal(engine: Engine, adapter: Path) -> str:
    with pytest.raises(InvalidAdapter) as caught:
        engine.adapters.load("a", adapter)
    assert engine.adapters.infos() == []
    return str(caught.value)


def change_config(adapter: Path, **options: object) -> None:
    config = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps(config | options))


def change_tensors(adapter: Path, **tensors: torch.Tensor | None) -> None:
    changed = {**load_file(adapter / TENSORS), **tensors}
    save_file({name: each for name, each in changed.items() if each is not None}, adapter / TENSORS)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', but must be LORA"),
        ({"use_dora": True}, "use_dora is True, but 'model.layers.0.mlp.down_proj' has no lora_magnitude_vector"),
        ({"modules_to_save": ["lm_head"]}, "but whole modules cannot be replaced; target them with LoRA"),
        ({"bias": "all"}, "bias is 'all', but biases cannot be changed: it must be none"),
        ({"lora_bias": True}, "lora_bias is set, but biases cannot be changed"),
        ({"fan_in_fan_out": True}, "transposed weights are not supported"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights is 'pissa', which changes the base weights"),
        ({"alora_invocation_tokens": [-1]}, "alora_invocation_tokens must be at most 128 token ids from 0 to 16777215"),
        ({"alora_invocation_tokens": [1] * 129}, "alora_invocation_tokens must be at most 128 token ids"),
        ({"alora_invocation_tokens": "text"}, "alora_invocation_tokens must be a whole number or a list of whole"),
        (
            {"alora_invocation_tokens": [1], "use_dora": True},
            "alora_invocation_tokens and use_dora are both set, which",
        ),
        ({"layer_replication": [[0, 1]]}, "layers cannot be replicated"),
        (
            {"target_parameters": ["experts.down_proj_bias"]},
            "target_parameters has 'experts.down_proj_bias', but biases",
        ),
        ({"some_new_option": 1}, "the option 'some_new_option' is not supported; train without it"),
        ({"r": None}, "r is missing"),
        ({"r": "4"}, "r must be a whole number, not '4'"),
        ({"lora_alpha": float("inf")}, "lora_alpha must be a number from"),
        ({"alpha_pattern": {"(": 1}}, "'(' is not a regular expression"),
        ({"alpha_pattern": {r"(\w+)+!": 1}}, "is too complex: a key may have 4 groups and repeats"),
        ({"alpha_pattern": {"(.*|.*)" * 9: 1}}, "is too complex"),
        ({"alpha_pattern": {"a{99999999999}": 1}}, "is not a regular expression: the repetition number is too large"),
        ({"alpha_pattern": dict.fromkeys(map(str, range(10_001)), 1)}, "has 10001 keys, over the limit of 10000"),
        ({"rank_pattern": {"q_proj": 0}}, "q_proj must be a number from 1 to"),
        ({"r": 5}, "down_proj are [4, 96] and [64, 4], but the config gives it rank 5"),
    ],
)
def test_options(engine: Engine, adapter: Path, options: dict[str, Any], expected: str) -> None:
    change_config(adapter, **options)
    message = refusal(engine, adapter)
    assert expected in message
    assert CONFIG in message or TENSORS in message


def test_missing_and_damaged_files(engine: Engine, adapter: Path) -> None:
    whole = (adapter / TENSORS).read_bytes()
    (adapter / TENSORS).write_bytes(whole[:-100])
    message = refusal(engine, adapter)
    assert message.startswith(f"{TENSORS} is damaged: {adapter / TENSORS} has ")
    assert "but its header says" in message
    (adapter / TENSORS).unlink()
    assert refusal(engine, adapter).endswith(f"{TENSORS} does not exist")
    (adapter / "adapter_model.bin").touch()
    message = refusal(engine, adapter)
    assert "adapter_model.bin is a pickle, which is not read: save it with safe_serialization" in message
    (adapter / CONFIG).write_text("{")
    assert "cannot be read: " in refusal(engine, adapter)
    (adapter / CONFIG).unlink()
    assert refusal(engine, adapter).endswith(f"{CONFIG} does not exist")
    assert refusal(engine, adapter / "nowhere").endswith(f"nowhere/{CONFIG} does not exist")


def test_tensors(engine: Engine, adapter: Path) -> None:
    name = f"{LAYER}.self_attn.q_proj.lora_A.weight"
    good = load_file(adapter / TENSORS)[name]
    wrong = good.clone()
    wrong[1, 1] = torch.nan
    cases = {
        f"{name} has values that are not finite": wrong,
        f"{name} is int32 [4, 64], but must be a matrix in float32, float16 or bfloat16": good.int(),
        f"{name} is float32 [256], but must be a matrix": good.flatten(),
        "has no lora_A": None,
    }
    for expected, tensor in cases.items():
        change_tensors(adapter, **{name: tensor})
        assert expected in refusal(engine, adapter)
    change_tensors(adapter, **{name: good})
    for other in ("self_attn.q_proj.lora_embedding_A", "self_attn.q_proj.lora_B.bias", "mlp.down_proj.weight"):
        change_tensors(adapter, **{f"{LAYER}.{other}": torch.ones(4, 4)})
        assert f"{other}' is not a LoRA matrix of a linear layer" in refusal(engine, adapter)
        change_tensors(adapter, **{f"{LAYER}.{other}": None})
    engine.adapters.load("a", adapter)
    engine.adapters.unload("a")


def test_ranks_above_the_limit(engine: Engine, model: Path, tmp_path: Path) -> None:
    adapter = make_adapter(model, tmp_path / "large", ["q_proj"], rank=17)
    assert "has rank 17, but max_lora_rank is 16; start with --max-lora-rank 17" in refusal(engine, adapter)


def test_adapters_of_other_models(engine: Engine, tmp_path: Path) -> None:
    narrow = make_checkpoint("llama3", tmp_path / "narrow", hidden_size=32)
    message = refusal(engine, make_adapter(narrow, tmp_path / "a", ["down_proj"]))
    assert "down_proj are for 96 inputs and 32 outputs, but the model has 96 and 64" in message
    assert message.endswith(f"the adapter was trained on another model, probably {narrow}")
    deep = make_checkpoint("llama3", tmp_path / "deep", num_hidden_layers=4)
    message = refusal(engine, make_adapter(deep, tmp_path / "b", ["q_proj", "v_proj"]))
    assert "the model has no layer model.layers.3.self_attn.q_proj (and 1 more) that can be changed" in message
    assert message.endswith("are down_proj, embed_tokens, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj")
    wide = make_checkpoint("llama3", tmp_path / "wide", vocab_size=VOCAB_SIZE + 8)
    message = refusal(engine, make_adapter(wide, tmp_path / "c", ["embed_tokens"]))
    assert f"are for {VOCAB_SIZE + 8} inputs and 64 outputs, but the model has {VOCAB_SIZE} and 64" in message


def test_dora(engine: Engine, model: Path, tmp_path: Path) -> None:
    name = f"{LAYER}.self_attn.q_proj.lora_magnitude_vector"
    adapter = make_adapter(model, tmp_path / "a", ["q_proj"], use_dora=True)
    size = load_file(adapter / TENSORS)[name].shape[0]
    change_config(adapter, use_dora=False)
    assert "use_dora is False, but 'model.layers.0.self_attn.q_proj' has a lora_magnitude_vec" in refusal(
        engine, adapter
    )
    change_config(adapter, use_dora=True)
    change_tensors(adapter, **{name: torch.ones(size + 1)})
    assert f"is float32 [{size + 1}], but must be a vector of {size} values" in refusal(engine, adapter)
    change_tensors(adapter, **{name: torch.full((size,), torch.inf)})
    assert f"{name} has values that are not finite" in refusal(engine, adapter)
    adapter = make_adapter(model, tmp_path / "b", ["embed_tokens"], use_dora=True)
    vector = "base_model.model.model.embed_tokens.lora_magnitude_vector"
    change_tensors(adapter, **{vector: torch.ones(64)})
    assert "'model.embed_tokens' cannot have DoRA; train it without, or leave it out" in refusal(engine, adapter)


def test_copies_of_base_weights(engine: Engine, model: Path, tmp_path: Path) -> None:
    adapter = make_adapter(model, tmp_path / "a", ["embed_tokens"])
    base = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    name = "base_model.model.model.embed_tokens.base_layer.weight"
    change_tensors(adapter, **{name: base})
    engine.adapters.load("a", adapter)
    engine.adapters.unload("a")
    change_tensors(adapter, **{name: base + 1})
    assert f"{name} differs from the model's weights: the adapter was trained on other" in refusal(engine, adapter)
    change_tensors(adapter, **{name: torch.cat([base, base[:4]])})
    assert "vocabularies that were resized are not supported" in refusal(engine, adapter)
    change_tensors(adapter, **{name: None, f"{LAYER}.mlp.up_proj.base_layer.weight": base})
    assert "up_proj.base_layer.weight' is a base weight, which cannot be replaced" in refusal(engine, adapter)


def test_values_that_are_too_large_for_the_type(model: Path, tmp_path: Path) -> None:
    adapter = make_adapter(model, tmp_path / "a", ["q_proj"], lora_alpha=1e7)
    engine = lora_engine(model, lora_dtype="float16")
    assert "are too large for float16; start with --lora-dtype float32" in refusal(engine, adapter)
    lora_engine(model, lora_dtype="float32").adapters.load("a", adapter)


@pytest.mark.parametrize("is_shorter", [True, False])
def test_files_that_change_while_they_are_read(
    engine: Engine, adapter: Path, monkeypatch: pytest.MonkeyPatch, is_shorter: bool
) -> None:
    """Memory that is mapped from the file would end the process, or have other contents than the digest."""
    expected = engine.adapters.load("a", adapter).digest
    engine.adapters.unload("a")
    size, found, low_ranks = (adapter / TENSORS).stat().st_size, list[str](), registry.low_ranks

    def changed(files: AdapterFiles, *others: Any) -> Any:
        if is_shorter:
            os.truncate(adapter / TENSORS, 10)
        else:
            (adapter / TENSORS).write_bytes(b"\1" * size)
        found.append(files.digest(others[1]))
        return low_ranks(files, *others)

    monkeypatch.setattr(registry, "low_ranks", changed)
    assert engine.adapters.load("a", adapter).digest == expected
    assert found == [expected]
    engine.adapters.unload("a")


def test_matrices_that_do_not_fit_are_not_read(engine: Engine, adapter: Path) -> None:
    header = {
        f"{LAYER}.mlp.down_proj.lora_{side}.weight": {"dtype": "F16", "shape": shape, "data_offsets": offsets}
        for side, shape, offsets in (
            ("A", [4, 1 << 36], [0, 1 << 39]),
            ("B", [64, 4], [1 << 39, (1 << 39) + 512]),
        )
    }
    encoded = json.dumps(header).encode()
    (adapter / TENSORS).write_bytes(len(encoded).to_bytes(8, "little") + encoded)
    os.truncate(adapter / TENSORS, 8 + len(encoded) + (1 << 39) + 512)  # sparse
    assert "down_proj are for 68719476736 inputs and 64 outputs" in refusal(engine, adapter)


def test_a_lack_of_memory_is_an_error_of_the_engine(
    engine: Engine, adapter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any other error on a rank that follows would end the worker."""

    def too_large(*_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(registry, "low_ranks", too_large)
    with pytest.raises(EngineError, match=r"cannot be loaded: RuntimeError: .*can't allocate memory"):
        engine.adapters.load("a", adapter)
    assert not engine.adapters.resident_numbers()
