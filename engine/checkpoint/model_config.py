"""Reader of a checkpoint's config.json and generation_config.json; rejects unsupported options by name."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from baton.engine.checkpoint.config_overrides import check_effect, of_language_model, overridden
from baton.engine.checkpoint.dtype import choose_dtype
from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.checkpoint.pooling_config import is_embedding_checkpoint
from baton.engine.checkpoint.rope_config import max_context, read_rope
from baton.engine.checkpoint.stored_quantization import read_stored_quantization
from baton.engine.config import EngineConfig, ModelConfig
from baton.engine.errors import InvalidCheckpoint, InvalidRequest, UnsupportedModel
from baton.engine.families.base import Family
from baton.engine.families.experts import check_experts
from baton.engine.families.options import refuse_unread
from baton.engine.families.registry import family_of, read_architecture
from baton.engine.sampling.params import SamplingParams
from baton.settings.values import parsed_json

MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationDefaults:
    """Sampling options that a checkpoint recommends; None where it recommends nothing."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None


def read_generation_defaults(directory: Path) -> GenerationDefaults:
    """Read the recommended sampling options of generation_config.json; all None if there is no such file.

    Raises InvalidCheckpoint for values that no request may use.
    """
    config = _generation_config(directory)

    def number(key: str) -> float | None:
        return config.number(key) if key in config else None

    def integer(key: str) -> int | None:
        return config.integer(key) if key in config else None

    defaults = GenerationDefaults(
        temperature=number("temperature"),
        top_p=number("top_p"),
        top_k=integer("top_k"),
        min_p=number("min_p"),
        repetition_penalty=number("repetition_penalty"),
        max_new_tokens=config.size("max_new_tokens") if "max_new_tokens" in config else None,
    )
    _check_sampling(defaults, config.source)
    return defaults


def _check_sampling(defaults: GenerationDefaults, source: str) -> None:
    names = ("temperature", "top_p", "min_p", "repetition_penalty")
    given = {name: value for name in names if (value := getattr(defaults, name)) is not None}
    try:
        SamplingParams(**given).validate(vocab_size=1)
    except InvalidRequest as error:  # every request that leaves the option out would fail in the same way
        raise InvalidCheckpoint(f"{source}: {error}") from error


def model_config_of(engine: EngineConfig) -> ModelConfig:
    """Read the configuration of an engine's checkpoint, as its options change it; raises like `read_model_config`."""
    overrides = parsed_json(engine.hf_overrides)
    return read_model_config(Path(engine.model), engine.dtype, on_cpu=engine.is_on_cpu, overrides=overrides)


def read_model_config(
    directory: Path,
    dtype: str = "auto",
    *,
    on_cpu: bool = True,
    overrides: Mapping[str, object] | None = None,
    architecture: str | None = None,
) -> ModelConfig:
    """Read and validate a checkpoint's configuration.

    `dtype` is auto (the checkpoint's own), bfloat16, float16 or float32; on a CPU, float16 is replaced. `overrides`
    replace values of config.json, and `architecture` the one named there. Raises UnsupportedModel for an architecture
    or option that is not implemented, InvalidCheckpoint for a file that is missing or invalid, and for overrides
    without an effect.
    """
    _refuse_gguf(directory)
    config = JsonObject.read(directory / "config.json")
    overrides = overrides or {}
    if architecture is not None:
        config = config.changed({"architectures": [architecture]})
    elif "architectures" in overrides:
        config = config.changed({"architectures": overrides["architectures"]})
    architecture = read_architecture(config)
    family = family_of(architecture)
    config = _of_language_model(config, family)
    if overrides:
        overrides = of_language_model(overrides) if family.has_text_config else overrides
        config = overridden(config, overrides)
    refuse_unread(config, architecture, family.reads)
    stored = read_stored_quantization(config, family.prefixes)
    chosen = choose_dtype(config, directory, dtype, family, stored, on_cpu=on_cpu)
    shared = _read_shared(config, directory, architecture, chosen)
    model = family.read(config, replace(shared, stored_quantization=stored))
    if model.rope.rotary_dim < 2 or model.rope.rotary_dim % 2:
        raise InvalidCheckpoint(
            f"{config.source}: the rotary width {model.rope.rotary_dim} must be an even number above 0"
        )
    if model.moe is not None:
        check_experts(config.source, model.moe)
    check_effect(config, overrides, architecture)
    return model


def _of_language_model(config: JsonObject, family: Family) -> JsonObject:
    """Return the options of the language model, with the family's defaults of absent keys; null is not absent."""
    text = config.inner("text_config") if family.has_text_config else JsonObject({}, config.source)
    nulls = dict.fromkeys(config.nulls | text.nulls)
    named = {"architectures": config.texts("architectures")}
    values = {**nulls, **config.values, **text.values, **named}
    given = JsonObject({**family.defaults, **values}, config.source)
    return JsonObject({**family.defaults, **family.derived(given), **values}, config.source)


def _read_shared(config: JsonObject, directory: Path, architecture: str, dtype: str) -> ModelConfig:
    """Read what all families have in common, with the defaults of this one."""
    family = family_of(architecture)
    hidden_size, num_heads = config.size("hidden_size"), config.size("num_attention_heads")
    num_layers, vocab_size = config.size("num_hidden_layers", maximum=MAX_LAYERS), config.size("vocab_size")
    head_dim = config.size("head_dim", family.head_dim or hidden_size // num_heads)
    interleaved = config.boolean("rope_interleave", family.interleaved)
    rope = read_rope(
        config,
        head_dim=head_dim,
        default_theta=family.theta,
        default_partial=family.partial_rotary_factor,
        interleaved=interleaved,
        layer_type=family.rope_of,
    )
    return ModelConfig(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(config, num_heads),
        head_dim=head_dim,
        intermediate_size=config.size("intermediate_size", minimum=0),
        rms_norm_eps=config.number("rms_norm_eps", family.rms_norm_eps, minimum=0),
        rope=rope,
        max_model_len=max_context(config, rope),
        dtype=dtype,
        tie_word_embeddings=config.boolean("tie_word_embeddings", family.tie_word_embeddings),
        may_lack_head=config.texts("architectures") != [architecture] or is_embedding_checkpoint(directory),
        num_nextn_predict_layers=config.size("num_nextn_predict_layers", 0, minimum=0, maximum=MAX_LAYERS),
        eos_token_ids=_eos_token_ids(config, directory, vocab_size),
    )


def _refuse_gguf(directory: Path) -> None:
    """Raise UnsupportedModel for a directory of GGUF files, unless it was made to stand for them.

    The config of another format describes other weights: those of llama, for example, are in another order.
    """
    if next(directory.glob("*.gguf"), None) is None or next(directory.glob("*.safetensors*"), None) is not None:
        return
    path = directory / "config.json"
    described = JsonObject.read(path).inner("quantization_config") if path.exists() else None
    if described is None or described.text("quant_method", "") != "gguf":
        raise UnsupportedModel(f"{directory} has GGUF files: name the .gguf file itself instead of its directory")


def _num_kv_heads(config: JsonObject, num_heads: int) -> int:
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise InvalidCheckpoint(f"{config.source}: {num_heads} heads do not divide into {num_kv_heads} KV heads")
    return num_kv_heads


def _eos_token_ids(config: JsonObject, directory: Path, vocab_size: int) -> frozenset[int]:
    """Return the EOS tokens of generation_config.json if it has any, otherwise those of config.json."""
    generation = _generation_config(directory)
    token_ids = frozenset(generation.integers("eos_token_id") or config.integers("eos_token_id"))
    if not all(0 <= token_id < vocab_size for token_id in token_ids):
        raise InvalidCheckpoint(f"{config.source}: eos_token_id {shown(sorted(token_ids))} must be below {vocab_size}")
    return token_ids


def _generation_config(directory: Path) -> JsonObject:
    path = directory / "generation_config.json"
    return JsonObject.read(path) if path.exists() else JsonObject({}, str(path))
