"""Reading config.json: layers with recurrent state, their sizes, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.config import EngineConfig
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel
from baton.engine.kv.dtype import STATE_ITEM_BYTES, default_kv_bytes, kv_bytes_per_token
from tests.checkpoints import make_checkpoint
from tests.paged_model import PagedModel
from tests.unit.engine.checkpoint.small_configs import LLAMA, write

QWEN3_NEXT = LLAMA | {
    "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 8,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
}
EVERY_FOURTH = (0, 1, 2, 4, 5, 6)


@pytest.mark.parametrize(
    ("change", "layers"),
    [
        ({}, EVERY_FOURTH),
        ({"full_attention_interval": 2}, (0, 2, 4, 6)),
        ({"layer_types": ["full_attention"] * 7 + ["linear_attention"]}, (7,)),
        ({"architectures": ["Qwen3_5ForCausalLM"], "num_experts": None, "attn_output_gate": True}, EVERY_FOURTH),
    ],
)
def test_layers_and_sizes(tmp_path: Path, change: dict[str, Any], layers: tuple[int, ...]) -> None:
    given = {key: value for key, value in (QWEN3_NEXT | change).items() if value is not None}
    config = read_model_config(write(tmp_path, given))
    assert config.delta_net is not None
    assert config.delta_net.layers == layers
    assert config.kv_layers == tuple(sorted(set(range(8)) - set(layers)))
    assert config.delta_net.state_shapes == ((3, 2 * 16 * 128 + 32 * 128), (32, 128, 128))
    assert config.rope.rotary_dim == 64
    assert (config.moe is None) == ("num_experts" not in given)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_types": ["full_attention"] * 7 + ["mamba"]}, "layer type 'mamba' is not supported with Qwen3Next"),
        ({"layer_types": ["linear_attention"] * 8}, "only linear_attention in all layers is not supported"),
        ({"layer_types": ["full_attention"] * 8}, "only full_attention in all layers is not supported"),
        ({"attn_output_gate": False}, "attn_output_gate False is not supported"),
    ],
)
def test_other_layers_are_refused_by_name(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedModel, match=named):
        read_model_config(write(tmp_path, QWEN3_NEXT | change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_types": ["full_attention"] * 7}, "layer_types has 7 entries for 8 layers"),
        ({"linear_num_value_heads": 24}, "linear_num_value_heads 24 is no multiple of linear_num_key_heads 16"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=named):
        read_model_config(write(tmp_path, QWEN3_NEXT | change))


def test_the_default_memory_has_room_for_the_states_of_a_full_batch(tmp_path: Path) -> None:
    model = read_model_config(write(tmp_path, QWEN3_NEXT))
    net = model.delta_net
    assert net is not None
    state_bytes = STATE_ITEM_BYTES * len(net.layers) * net.state_size
    engine = EngineConfig(model="", device="cpu", max_num_seqs=16)
    kv_bytes = 16 * model.max_model_len * kv_bytes_per_token(model)
    assert default_kv_bytes(1 << 40, 1, model, engine) == kv_bytes + 2 * 16 * state_bytes


def test_the_text_part_of_a_model_for_images_is_read(tmp_path: Path) -> None:
    text = make_checkpoint("qwen3.5", tmp_path / "text")
    tensors, config = load_file(text / "model.safetensors"), json.loads((text / "config.json").read_text())
    whole = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "float32",
        "text_config": {key: value for key, value in config.items() if key not in ("architectures", "dtype")},
        "vision_config": {"hidden_size": 2},
    }
    rope = whole["text_config"]["rope_parameters"]
    rope |= {"mrope_section": [1, 2, 1], "mrope_interleaved": True}  # for text all sections have the same positions
    (tmp_path / "image").mkdir()
    directory = write(tmp_path / "image", whole)
    named = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    others = {name: next(iter(tensors.values())).clone() for name in ("model.visual.patch.weight", "mtp.fc.weight")}
    save_file(named | others, directory / "model.safetensors")
    tokens = list(range(3, 40))
    logits = [PagedModel(each).step({"s": tokens})["s"] for each in (text, directory)]
    assert logits[0].equal(logits[1])
