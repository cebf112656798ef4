"""Reading quantization_config: supported FP8 formats, and rejection of others by name."""

from typing import Any

import pytest

from baton.engine.checkpoint.json_object import JsonObject
from baton.engine.checkpoint.stored_quantization import StoredQuantization, read_stored_quantization
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.families.base import LANGUAGE_MODEL
from tests.unit.engine.fp8_writer import FORMATS

FP8 = {"quant_method": "fp8"}
WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
TOKENS = WEIGHTS | {"strategy": "token", "dynamic": True}


def read(quantization: dict[str, Any] | None) -> StoredQuantization | None:
    return read_stored_quantization(JsonObject({"quantization_config": quantization}, "config.json"))


def compressed(*groups: dict[str, Any], **more: Any) -> dict[str, Any]:
    named = {f"group_{index}": group for index, group in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": named, **more}


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        (None, None),
        (FP8, StoredQuantization()),
        (FP8 | {"activation_scheme": "static", "weight_block_size": None}, StoredQuantization()),
        (FP8 | {"fmt": "e4m3", "weight_block_size": [128, 64]}, StoredQuantization(block=(128, 64))),
        (FP8 | {"weight_block_size": [128, 128], "scale_fmt": "ue8m0"}, StoredQuantization(block=(128, 128))),
        (compressed({"weights": WEIGHTS, "input_activations": TOKENS}), StoredQuantization()),
        (compressed({"weights": WEIGHTS}), StoredQuantization(quantises_tokens=False)),
        (
            compressed(
                {"weights": WEIGHTS, "input_activations": TOKENS}, {"weights": WEIGHTS | {"strategy": "tensor"}}
            ),
            StoredQuantization(quantises_tokens=False),
        ),
        (
            compressed(
                {
                    "weights": WEIGHTS | {"strategy": "block", "block_structure": [128, 128]},
                    "input_activations": TOKENS | {"strategy": "group", "group_size": 128},
                },
                kv_cache_scheme={"num_bits": 8, "type": "float"},
            ),
            StoredQuantization(block=(128, 128)),
        ),
    ],
)
def test_known_formats_are_read(quantization: dict[str, Any] | None, expected: StoredQuantization | None) -> None:
    assert read(quantization) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_formats_of_the_test_checkpoints_are_read(name: str) -> None:
    stored = read(FORMATS[name].config)
    assert stored is not None
    assert (stored.block is not None) == name.startswith("blocks")
    assert stored.quantises_tokens == (name != "weights-alone")


@pytest.mark.parametrize(
    ("quantization", "named"),
    [
        ({"quant_method": "awq", "bits": 8}, "bits 8 is not supported, only 4"),
        ({"quant_method": "awq", "version": "gemv"}, "version 'gemv' is not supported, only gemm"),
        ({"quant_method": "awq", "zero_point": False}, "zero_point False"),
        ({"quant_method": "gptq", "bits": 3}, "bits 3 is not supported, only 4, 8"),
        ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        ({"quant_method": "gptq", "dynamic": {"+:.*q_proj": {"bits": 2}}}, "dynamic: +:.*q_proj: bits 2"),
        ({"quant_method": "auto-round", "packing_format": "auto_round:exllama"}, "packing_format 'auto_round:exll"),
        ({"quant_method": "auto-round", "data_type": "mx_fp"}, "data_type 'mx_fp'"),
        ({"quant_method": "modelopt"}, "quant_method 'modelopt'"),
        ({"bits": 4}, "quant_method 'unknown'"),
        (FP8 | {"fmt": "e5m2"}, "fmt 'e5m2'"),
        (FP8 | {"activation_scheme": "block"}, "activation_scheme 'block'"),
        (compressed(), "no config_groups"),
        (compressed({"weights": WEIGHTS | {"num_bits": 2, "type": "int"}}), "group_0: weights: 2 bits of type 'int'"),
        (compressed({"weights": WEIGHTS | {"num_bits": 4}}), "group_0: weights: 4 bits of type 'float'"),
        (compressed({"weights": WEIGHTS | {"type": "int", "strategy": "block"}}), "weights: strategy 'block'"),
        (compressed({"weights": WEIGHTS | {"type": "int", "strategy": "group"}}), "strategy 'group' without a group"),
        (compressed({"weights": WEIGHTS | {"symmetric": False}}), "group_0: FP8 that is not symmetric"),
        (compressed({"targets": ["Linear"]}), "group_0: a group without weights"),
        (compressed({"weights": WEIGHTS | {"strategy": "group"}}), "strategy 'group'"),
        (compressed({"weights": WEIGHTS | {"strategy": "block"}}), "group_0: strategy 'block' without"),
        (compressed({"weights": WEIGHTS, "input_activations": TOKENS | {"type": "int"}}), "input_activations"),
        (compressed({"weights": WEIGHTS, "output_activations": TOKENS}), "output_activations"),
        (compressed({"weights": WEIGHTS}, sparsity_config={"format": "sparse-24-bitmask"}), "sparsity_config"),
        (compressed({"weights": WEIGHTS}, transform_config={"config_groups": {"R1": {}}}), "transform_config"),
        (
            compressed({"weights": WEIGHTS}, {"weights": WEIGHTS | {"strategy": "block", "block_structure": [8, 8]}}),
            "a scale per block in one group but not in another",
        ),
    ],
)
def test_other_formats_are_refused_by_name(quantization: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel) as raised:
        read(quantization)
    assert named in str(raised.value)
    assert str(raised.value).startswith("config.json: quantization_config")
    assert "is not supported" in str(raised.value)


@pytest.mark.parametrize("sizes", [[128], [128, 128, 1], [0, 128], "128"])
def test_blocks_have_two_sizes(sizes: Any) -> None:
    with pytest.raises(InvalidCheckpoint, match="weight_block_size must be"):
        read(FP8 | {"weight_block_size": sizes})


def test_static_activation_scales_are_unused() -> None:
    stored = StoredQuantization()
    assert stored.is_unused("model.layers.0.mlp.down_proj.input_scale")
    assert stored.is_unused("model.layers.0.mlp.down_proj.activation_scale")
    assert not stored.is_unused("model.layers.0.mlp.down_proj.weight_scale")


def test_modules_are_meant_by_their_names_in_a_model_for_images() -> None:
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "ignore": ["language_model.lm_head", "re:language_model.model.layers.0.*", "re:^model.language_model.layers.1"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128},
            }
        },
    }
    config = JsonObject({"quantization_config": quantization}, "config.json")
    found = read_stored_quantization(config, LANGUAGE_MODEL)
    assert found is not None
    layers = [f"model.layers.{place}.mlp.up_proj" for place in range(3)]
    assert [found.packed.is_excluded(module) for module in ("lm_head", *layers)] == [True, True, True, False]
    of_text = read_stored_quantization(config)
    assert of_text is not None
    assert not any(of_text.packed.is_excluded(module) for module in ("lm_head", *layers))
