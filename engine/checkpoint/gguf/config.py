"""config.json and generation_config.json of a model in a GGUF file, in transformers' terms."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from baton.engine.checkpoint.gguf.metadata import Metadata
from baton.engine.checkpoint.gguf.types import PACKED
from baton.engine.checkpoint.json_object import shown
from baton.engine.checkpoint.stored_tensor import StoredTensor
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
# Llama 3.1 and later scale frequencies; a file has only the result, which follows from these and the factor.
LOW_FREQ, HIGH_FREQ, ORIGINAL_CONTEXT = 1.0, 4.0, 8192
ROPE_TOLERANCE = 1e-3
END_TOKENS = ("eos", "eot", "eom")
CONTROL = 3  # of tokenizer.ggml.token_type
# Most converters store only one end; llama.cpp too finds others by their text.
END_TEXTS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>")


def gguf_config(
    metadata: Metadata, tensors: Mapping[str, StoredTensor], rope_factors: Sequence[float] | None
) -> dict[str, object]:
    """Return config.json. Raises UnsupportedModel for architectures that are not supported, InvalidCheckpoint.

    tensors: by transformers' names; rope_factors: divisors of the rotary frequencies, None: 1.
    """
    architecture = metadata.architecture
    if architecture not in ARCHITECTURES:
        supported = ", ".join(ARCHITECTURES)
        raise UnsupportedModel(
            f"{metadata.source}: architecture {shown(architecture)} is not supported, only {supported}"
        )
    if "model.embed_tokens.weight" not in tensors:
        raise InvalidCheckpoint(f"{metadata.source}: tensor token_embd.weight is missing")
    if len(tensors["model.embed_tokens.weight"].shape) != 2:
        raise InvalidCheckpoint(f"{metadata.source}: tensor token_embd.weight is not a matrix")
    hidden, heads = metadata.size("embedding_length"), metadata.size("attention.head_count")
    if heads < 1:
        raise InvalidCheckpoint(f"{metadata.source}: {architecture}.attention.head_count must be above 0, not {heads}")
    head_dim = metadata.size("attention.key_length", metadata.size("rope.dimension_count", hidden // heads))
    num_experts = metadata.size("expert_count", 0)
    config: dict[str, object] = {
        "architectures": [
            "MixtralForCausalLM" if architecture == "llama" and num_experts else ARCHITECTURES[architecture]
        ],
        "vocab_size": tensors["model.embed_tokens.weight"].shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": metadata.size("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.size("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "intermediate_size": metadata.size("feed_forward_length", 0),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": metadata.size("context_length"),
        "rope_theta": metadata.number("rope.freq_base", 1e4),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "dtype": _dtype(tensors),
        "quantization_config": {"quant_method": "gguf"},
    }
    if architecture == "llama":
        config["rope_interleave"] = True  # the converter puts the two elements of a rotated pair next to each other
        config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in tensors
        config["mlp_bias"] = "model.layers.0.mlp.gate_proj.bias" in tensors
    scaling = _rope_scaling(metadata, rope_factors, head_dim)
    if scaling is not None:
        config["rope_scaling"] = scaling
    if num_experts:
        config |= {"num_experts": num_experts, "num_local_experts": num_experts, "norm_topk_prob": True}
        config |= {"num_experts_per_tok": metadata.size("expert_used_count")}
        size = metadata.size("expert_feed_forward_length", metadata.size("feed_forward_length", 0))
        config["moe_intermediate_size"] = size
    if eos := _end_tokens(metadata):
        config["eos_token_id"] = eos
    if (bos := metadata.integer("tokenizer.ggml.bos_token_id")) is not None:
        config["bos_token_id"] = bos
    return config


def _end_tokens(metadata: Metadata) -> list[int]:
    """Return the tokens that end a text, a turn or a message."""
    found = {metadata.integer(f"tokenizer.ggml.{name}_token_id") for name in END_TOKENS} - {None}
    if "tokenizer.ggml.tokens" in metadata and "tokenizer.ggml.token_type" in metadata:
        tokens, kinds = metadata.texts("tokenizer.ggml.tokens"), metadata.integers("tokenizer.ggml.token_type")
        for token, (text, kind) in enumerate(zip(tokens, kinds, strict=False)):
            if kind == CONTROL and text in END_TEXTS:
                found.add(token)
    return sorted(token for token in found if token is not None)


def _dtype(tensors: Mapping[str, StoredTensor]) -> str:
    """Return the type of activations: bfloat16 with packed matrices, otherwise that of most matrices."""
    if any(tensor.dtype.startswith(PACKED) for tensor in tensors.values()):
        return "bfloat16"
    matrices = Counter(tensor.dtype for tensor in tensors.values() if len(tensor.shape) > 1)
    return matrices.most_common(1)[0][0]


def _rope_scaling(metadata: Metadata, factors: Sequence[float] | None, head_dim: int) -> dict[str, object] | None:
    kind = metadata.text(f"{metadata.architecture}.rope.scaling.type", "none")
    if kind == "none":
        return None if factors is None else _llama3(metadata, factors, head_dim)
    if kind not in ("linear", "yarn") or factors is not None:
        raise UnsupportedModel(f"{metadata.source}: rope scaling {shown(kind)} is not supported, only linear and yarn")
    scaling: dict[str, object] = {"rope_type": kind, "factor": metadata.number("rope.scaling.factor")}
    if metadata.has("rope.scaling.original_context_length"):
        scaling["original_max_position_embeddings"] = metadata.size("rope.scaling.original_context_length")
    for key in ("beta_fast", "beta_slow"):
        if metadata.has(f"rope.scaling.yarn_{key}"):
            scaling[key] = metadata.number(f"rope.scaling.yarn_{key}")
    return scaling


def _llama3(metadata: Metadata, factors: Sequence[float], head_dim: int) -> dict[str, object] | None:
    """Return Llama 3's scaling whose factors are those of the file. Raises UnsupportedModel if there is none."""
    if all(each == 1.0 for each in factors):
        return None
    factor, theta = max(factors), metadata.number("rope.freq_base", 1e4)
    if not (len(factors) == head_dim // 2 and min(factors) > 0 and theta > 0):
        raise InvalidCheckpoint(
            f"{metadata.source}: rope_freqs.weight must have {head_dim // 2} values above 0, and rope.freq_base too"
        )
    expected = [_llama3_factor(2 * math.pi * theta ** (2 * i / head_dim), factor) for i in range(head_dim // 2)]
    is_known = all(
        math.isclose(ours, theirs, rel_tol=ROPE_TOLERANCE) for ours, theirs in zip(expected, factors, strict=True)
    )
    if not is_known:
        raise UnsupportedModel(f"{metadata.source}: rope_freqs.weight is not supported, only the factors of Llama 3")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW_FREQ,
        "high_freq_factor": HIGH_FREQ,
        "original_max_position_embeddings": ORIGINAL_CONTEXT,
    }


def _llama3_factor(wave_length: float, factor: float) -> float:
    """Return the divisor of a frequency, as the converter computes it."""
    if wave_length < ORIGINAL_CONTEXT / HIGH_FREQ:
        return 1.0
    if wave_length > ORIGINAL_CONTEXT / LOW_FREQ:
        return factor
    smooth = (ORIGINAL_CONTEXT / wave_length - LOW_FREQ) / (HIGH_FREQ - LOW_FREQ)
    return 1 / ((1 - smooth) / factor + smooth)
