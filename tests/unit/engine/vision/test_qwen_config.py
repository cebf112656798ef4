"""Configs of Qwen2.5-VL as they are on the hub, and what is refused of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.engine.checkpoint.model_config import read_model_config
from baton.engine.errors import EngineError

# As of Qwen2.5-VL-7B-Instruct, which has the text model's options at the top.
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "image_token_id": 151655,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 128000,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "sliding_window": 32768,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 3584,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 152064,
}


def written(directory: Path, **changes: Any) -> Path:
    (directory / "config.json").write_text(json.dumps(CONFIG | changes))
    return directory


def test_a_config_of_the_hub_is_read(tmp_path: Path) -> None:
    config = read_model_config(written(tmp_path))
    assert (config.rope.kind, config.rope.theta, config.qkv_bias, config.spans) == ("default", 1e6, True, ())
    vision = config.vision
    assert vision is not None
    assert (vision.num_layers, vision.hidden_size, vision.intermediate_size, vision.num_heads) == (32, 1280, 3420, 16)
    assert (vision.token_size, vision.window_size, vision.full_layers) == (28, 112, {7, 15, 23, 31})
    assert (vision.placeholder_id, vision.rotary_sections) == (151655, (16, 24, 24))


def test_an_encoder_may_have_windows_only(tmp_path: Path) -> None:
    config = read_model_config(written(tmp_path, vision_config=CONFIG["vision_config"] | {"fullatt_block_indexes": []}))
    assert config.vision is not None
    assert config.vision.full_layers == frozenset()


@pytest.mark.parametrize(
    ("vision", "message"),
    [
        ({"hidden_act": "gelu"}, "vision_config.hidden_act 'gelu' is not supported"),
        ({"in_channels": 1}, "vision_config.in_channels 1 is not supported"),
        ({"out_hidden_size": 2048}, "vision_config.out_hidden_size 2048 is not supported"),
        ({"num_heads": 24}, "hidden_size must be a multiple of 4 for each of the heads"),
        ({"window_size": 14}, "window_size 14 must be at least 28"),
    ],
)
def test_other_encoders_are_refused_by_name(vision: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=message):
        read_model_config(written(tmp_path, vision_config=CONFIG["vision_config"] | vision))


def test_a_placeholder_outside_of_the_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="image_token_id must be from 0 to 152063"):
        read_model_config(written(tmp_path, image_token_id=152064))
