"""hf_overrides: merged into config.json, part of the fingerprint, refused without an effect."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from baton.engine.checkpoint.config_overrides import how_to_extend
from baton.engine.checkpoint.model_config import model_config_of, read_model_config
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineError, InvalidCheckpoint, UnsupportedModel
from baton.engine.kv.fingerprint import compatibility_fingerprint
from baton.settings.values import parse_json
from tests.checkpoints import make_checkpoint
from tests.paged_model import PagedModel
from tests.unit.engine.checkpoint.small_configs import DEEPSEEK_V2, LLAMA, write
from tests.unit.engine.test_models import ATOL, oracle_logits, random_tokens

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}


def read(directory: Path, overrides: dict[str, Any]) -> Any:
    return read_model_config(directory, overrides=overrides)


def test_values_are_those_of_a_config_json_with_them(tmp_path: Path) -> None:
    for config, overrides in (
        (LLAMA, {"rope_scaling": YARN}),
        (LLAMA, {"rope_theta": 5e5, "max_position_embeddings": 4096}),
        (LLAMA, {"architectures": ["Qwen2ForCausalLM"]}),
        (LLAMA, {"torch_dtype": "float32", "num_key_value_heads": 2}),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 2.0}}, {"rope_scaling": None}),
        (DEEPSEEK_V2, {"num_experts_per_tok": 1}),
    ):
        found = read(write(tmp_path, config), overrides)
        assert found == read_model_config(write(tmp_path, config | overrides))
        assert found != read_model_config(write(tmp_path, config))


@pytest.mark.parametrize("given", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("former", ["rope_scaling", "rope_parameters", None])
def test_a_scaling_keeps_the_base_frequency(tmp_path: Path, given: str, former: str | None) -> None:
    """transformers 4 has it at the top level, transformers 5 in `rope_parameters`."""
    theta = {"rope_theta": 5e5}
    write(tmp_path, LLAMA | (theta if former is None else {former: {"rope_type": "linear", "factor": 2.0} | theta}))
    rope = read(tmp_path, {given: YARN}).rope
    assert (rope.theta, rope.kind, rope.factor) == (5e5, "yarn", 4.0)
    assert read(tmp_path, {given: YARN | {"rope_theta": 3e5}}).rope.theta == 3e5
    plain = read(tmp_path, {given: None}).rope
    assert (plain.theta, plain.kind) == (5e5, "default")


@pytest.mark.parametrize("former", ["rope_scaling", "rope_parameters"])
def test_a_value_at_the_top_level_replaces_that_of_the_rotary_options(tmp_path: Path, former: str) -> None:
    """transformers 5 writes the base frequency there, where it counts."""
    write(tmp_path, LLAMA | {former: {"rope_type": "default", "rope_theta": 5e5}})
    assert read(tmp_path, {"rope_theta": 3e5}).rope.theta == 3e5
    rope = read(tmp_path, {"rope_theta": 3e5, "rope_scaling": YARN}).rope
    assert (rope.theta, rope.kind) == (3e5, "yarn")
    write(tmp_path, LLAMA | {former: YARN})
    assert read(tmp_path, {"original_max_position_embeddings": 256}).max_model_len == 1024


def test_the_stored_type_has_two_names(tmp_path: Path) -> None:
    for stored, other in (("dtype", "torch_dtype"), ("torch_dtype", "dtype")):
        config = {key: value for key, value in LLAMA.items() if key != other} | {stored: "float32"}
        write(tmp_path, config)
        assert read(tmp_path, {other: "bfloat16"}).dtype == "bfloat16"


def test_the_embedding_of_one_kind_of_layers_is_overridden(tmp_path: Path) -> None:
    both = {
        "full_attention": {"rope_type": "default", "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    write(tmp_path, LLAMA | {"architectures": ["Gemma3ForCausalLM"], "rope_parameters": both})
    config = read(tmp_path, {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}})
    assert (config.rope.kind, config.rope.factor, config.rope.theta) == ("linear", 8.0, 5e5)
    assert (config.local_rope.kind, config.local_rope.theta) == ("default", 2e4)
    with pytest.raises(InvalidCheckpoint, match=r"^hf_overrides: rope_parameters\.factor has no effect"):
        read(tmp_path, {"rope_parameters": {"factor": 8.0}})
    hint = r"has no effect; replace rope_parameters\.full_attention\.rope_theta$"
    with pytest.raises(InvalidCheckpoint, match=f"^hf_overrides: rope_theta {hint}"):
        read(tmp_path, {"rope_theta": 3e5})


def test_the_language_models_keys_may_be_in_its_own_section(tmp_path: Path) -> None:
    text = {key: value for key, value in LLAMA.items() if key != "architectures"}
    write(tmp_path, {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text})
    for overrides in ({"rms_norm_eps": 0.5}, {"text_config": {"rms_norm_eps": 0.5}}):
        assert read(tmp_path, overrides).rms_norm_eps == 0.5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"rope_scalling": YARN},
            "^hf_overrides: rope_scalling has no effect on LlamaForCausalLM; did you mean rope_sc",
        ),
        (
            {"rope_scaling": YARN | {"factr": 2}},
            "^hf_overrides: rope_scaling.factr has no effect .*; did you mean fact",
        ),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": "4"}},
            "config.json with hf_overrides: rope_scaling: factor must",
        ),
        ({"hidden_size": -1}, "with hf_overrides: hidden_size must be from 1 to"),
        ({"text_config": {"rope_theta": 1e6}}, "^hf_overrides: text_config has no effect on LlamaForCausalLM"),
    ],
)
def test_wrong_overrides_are_named(tmp_path: Path, overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidCheckpoint, match=message):
        read(write(tmp_path, LLAMA), overrides)


def test_an_unsupported_override_is_refused_like_in_the_file(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    for overrides, message in (
        ({"rope_scaling": {"rope_type": "dynamic"}}, "rope type 'dynamic' is not supported"),
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture 'GPT2LMHeadModel' is not supported"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported"),
    ):
        with pytest.raises(UnsupportedModel, match=message):
            read(tmp_path, overrides)


def test_the_stored_type_may_be_overridden_where_another_is_asked_for(tmp_path: Path) -> None:
    """A router asks for any type, since it computes nothing."""
    write(tmp_path, LLAMA)
    for key in ("dtype", "torch_dtype"):
        assert read_model_config(tmp_path, "float32", overrides={key: "float16"}).dtype == "float32"


def test_workers_with_different_overrides_exchange_no_kv(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    configs = [read(tmp_path, each) for each in ({}, {"rope_scaling": YARN}, {"rope_theta": 5e5})]
    assert len({compatibility_fingerprint(tmp_path, config, 16, "") for config in configs}) == 3


@pytest.mark.parametrize("architecture", ["llama3", "qwen3"])
def test_yarn_gives_transformers_logits_beyond_the_stored_context(architecture: str, tmp_path: Path) -> None:
    checkpoint = make_checkpoint(architecture, tmp_path / "model", max_position_embeddings=64)
    scaling = YARN | {"original_max_position_embeddings": 64}
    config = AutoConfig.from_pretrained(checkpoint)
    config.rope_parameters = scaling | {"rope_theta": config.rope_parameters["rope_theta"]}
    oracle = AutoModelForCausalLM.from_pretrained(
        checkpoint, config=config, attn_implementation="eager", dtype=torch.float32
    )
    model = PagedModel(checkpoint, overrides={"rope_scaling": scaling})
    assert model.config.max_model_len == 256
    tokens = random_tokens(150, 1)
    expected = oracle_logits(oracle, tokens)
    torch.testing.assert_close(model.step({"a": tokens})["a"], expected, atol=ATOL, rtol=0)
    plain = PagedModel(make_checkpoint(architecture, tmp_path / "plain", max_position_embeddings=256))
    assert (plain.step({"a": tokens})["a"] - expected).abs().max() > 0.1


def test_a_longer_context_needs_a_scaling_that_the_error_describes(tmp_path: Path) -> None:
    checkpoint = make_checkpoint("qwen3", tmp_path, max_position_embeddings=64)
    plain = EngineConfig(model=str(checkpoint), max_model_len=130, kv_cache_memory_bytes=1 << 20)
    with pytest.raises(
        EngineError, match=r"^max_model_len is 130, but the checkpoint.s context is 64 tokens; "
    ) as caught:
        Engine(plain)
    text = str(caught.value).partition("--hf-overrides ")[2].strip("'")
    assert json.loads(text)["rope_scaling"]["factor"] == 3.0
    extended = EngineConfig(
        model=str(checkpoint), max_model_len=130, kv_cache_memory_bytes=1 << 20, hf_overrides=parse_json(text)
    )
    assert model_config_of(extended).max_model_len == 192
    engine = Engine(extended)
    assert engine.finish_rule.max_model_len == 130
    engine.close()


def test_the_error_names_no_scaling_where_layers_have_different_embeddings(tmp_path: Path) -> None:
    write(tmp_path, LLAMA)
    assert "YaRN" in how_to_extend(read(tmp_path, {}), 1024)
    assert how_to_extend(read(tmp_path, {"rope_scaling": YARN}), 4096) == ""
    assert how_to_extend(read(tmp_path, {"architectures": ["Gemma3ForCausalLM"]}), 1024) == ""
