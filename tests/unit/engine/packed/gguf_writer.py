"""GGUF files written by the `gguf` package, and the same numbers dequantised by it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from tests.unit.engine.packed.packed_writer import write

Type = gguf.GGMLQuantizationType
Array = NDArray[Any]
NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"} | {
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"
}  # fmt: skip
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"} | {
    "qwen3_moe": "qwen3moe"
}


@dataclass(frozen=True, slots=True)
class Written:
    """A GGUF file (the first one, if there are several), and a directory with the same numbers in fp32."""

    file: Path
    exact: Path


def k_quantised(matrix: Array, kind: Type) -> Array:
    """Quantise to Q4_K, Q5_K or Q6_K, which the package only reads; blocks as ggml lays them out."""
    groups = matrix.reshape(-1, 8 if kind != Type.Q6_K else 16, 32 if kind != Type.Q6_K else 16)
    if kind == Type.Q6_K:
        scale = np.abs(groups).max(2) / 31
        d = (scale.max(1) / 127 + 1e-12).astype(np.float16)
        inner = np.round(scale / d[:, None].astype(np.float32)).clip(1, 127)
        step = d.astype(np.float32)[:, None, None] * inner[:, :, None]
        codes = (np.round(groups / step) + 32).clip(0, 63).astype(np.uint8).reshape(-1, 2, 128)
        low = np.concatenate([codes[:, :, :64] & 15 | (codes[:, :, 64:] & 15) << 4], 2).reshape(-1, 128)
        runs = (codes >> 4).reshape(-1, 2, 4, 32)
        high = (runs[:, :, 0] | runs[:, :, 1] << 2 | runs[:, :, 2] << 4 | runs[:, :, 3] << 6).reshape(-1, 64)
        parts = [low, high, inner.astype(np.int8).view(np.uint8), d.view(np.uint8).reshape(-1, 2)]
        return np.concatenate(parts, 1)
    top = 15 if kind == Type.Q4_K else 31
    low_end, high_end = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    scale, floor = (high_end - low_end) / top, -low_end
    d, dmin = ((each.max(1) / 63 + 1e-12).astype(np.float16) for each in (scale, floor))
    inner = np.ceil(scale / d[:, None].astype(np.float32)).clip(1, 63).astype(np.uint8)
    minima = np.round(floor / dmin[:, None].astype(np.float32)).clip(0, 63).astype(np.uint8)
    step = d.astype(np.float32)[:, None] * inner
    offset = dmin.astype(np.float32)[:, None] * minima
    codes = np.round((groups + offset[:, :, None]) / step[:, :, None]).clip(0, top).astype(np.uint8)
    packed = [inner[:, :4] & 63 | (inner[:, 4:] >> 4) << 6, minima[:, :4] & 63 | (minima[:, 4:] >> 4) << 6]
    packed.append(inner[:, 4:] & 15 | (minima[:, 4:] & 15) << 4)
    halves = [each.view(np.uint8).reshape(-1, 2) for each in (d, dmin)]
    low = (codes[:, 0::2] & 15 | (codes[:, 1::2] & 15) << 4).reshape(-1, 128)
    if kind == Type.Q4_K:
        return np.concatenate([*halves, *packed, low], 1)
    high = np.zeros((len(codes), 32), np.uint8)
    for run in range(8):
        high |= (codes[:, run] >> 4) << run
    return np.concatenate([*halves, *packed, high, low], 1)


def blocks(matrix: Array, kind: Type) -> Array:
    """Quantise a matrix to rows of blocks."""
    if kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
        return k_quantised(matrix.astype(np.float32), kind).reshape(len(matrix), -1)
    return quantize(matrix.astype(np.float32), kind)


def write_gguf(
    source: Path,
    directory: Path,
    kind: Type,
    *,
    others: dict[str, Type] | None = None,
    add: Callable[[gguf.GGUFWriter], Any] = lambda writer: None,
    max_tensors: int = 0,
) -> Written:
    """Write both forms of a checkpoint in fp32.

    kind: type of matrices, the embedding included; others: types of those with a text in their GGUF name. max_tensors:
    tensors of a file; 0: all in one. add: adds metadata.
    """
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    exact: dict[str, Tensor] = {}
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"tiny-{kind.name}.gguf"
    writer = gguf.GGUFWriter(file, ARCHITECTURES[config["model_type"]], split_max_tensors=max_tensors)
    _add_config(writer, config)
    if (source / "tokenizer.json").exists():
        add_tokenizer_of(writer, source)
    else:
        _add_tokenizer(writer, config["vocab_size"])
    add(writer)
    for name, (values, parts) in _renamed(tensors, config).items():
        chosen = next((value for part, value in (others or {}).items() if part in name), kind)
        if values.ndim == 1 or "ffn_gate_inp" in name:
            chosen = Type.F32
        if chosen == Type.F32:
            writer.add_tensor(name, values.astype(np.float32))
            restored = values.astype(np.float32)
        else:
            raw = blocks(values.reshape(-1, values.shape[-1]), chosen)
            writer.add_tensor(name, raw.reshape(*values.shape[:-1], -1), raw_dtype=chosen)
            restored = dequantize(raw, chosen).reshape(values.shape)
        for part, unpermuted in parts(restored):
            exact[part] = torch.from_numpy(np.ascontiguousarray(unpermuted).astype(np.float32))
    writer.write_header_to_file(None if max_tensors else file)
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write(source, directory / "exact", exact, config | {"dtype": "float32"})
    first = sorted(directory.glob("tiny-*.gguf"))[0]
    return Written(first, directory / "exact")


Parts = Callable[[Array], list[tuple[str, Array]]]  # a tensor's numbers to names and numbers of transformers' tensors


def _renamed(tensors: dict[str, Tensor], config: dict[str, Any]) -> dict[str, tuple[Array, Parts]]:
    found: dict[str, tuple[Array, Parts]] = {}
    is_llama = ARCHITECTURES[config["model_type"]] == "llama"
    stacked: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        values = tensor.float().numpy()
        module, _, kind = name.rpartition(".")
        if ".experts." in module:
            prefix, _, rest = module.partition(".experts.")
            expert, part = rest.split(".")
            key = f"blk.{prefix.split('.')[2]}.{EXPERTS[part]}.weight"
            stacked.setdefault(key, []).append(name)
            assert int(expert) < config.get("num_experts", config.get("num_local_experts"))
            continue
        if module.startswith("model.layers."):
            layer, _, part = module.removeprefix("model.layers.").partition(".")
            key = f"blk.{layer}.{NAMES[part]}.{kind}"
        else:
            key = f"{NAMES[module]}.{kind}"
        heads = 0
        if is_llama and part_of_rotated(module):
            heads = config["num_attention_heads" if "q_proj" in module else "num_key_value_heads"]
        found[key] = (permuted(values, heads), lambda restored, n=name, h=heads: [(n, unpermuted(restored, h))])
    for key, names in stacked.items():
        ordered = sorted(names, key=lambda each: int(each.partition(".experts.")[2].split(".")[0]))
        values = np.stack([tensors[name].float().numpy() for name in ordered])
        found[key] = (values, lambda restored, o=ordered: list(zip(o, restored, strict=True)))
    return found


def part_of_rotated(module: str) -> bool:
    return module.endswith(("q_proj", "k_proj"))


def permuted(values: Array, heads: int) -> Array:
    """As llama.cpp's converter permutes the rows of queries and keys: the elements of a rotated pair are adjacent."""
    if not heads:
        return values
    return values.reshape(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def unpermuted(values: Array, heads: int) -> Array:
    if not heads:
        return values
    return values.reshape(heads, -1, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _add_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_key_length(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config.get("rope_parameters") or {}
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", np.array(llama3_factors(rope, head_dim), np.float32))
    elif rope.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
        if "original_max_position_embeddings" in rope:
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    num_experts = config.get("num_experts", config.get("num_local_experts"))
    if num_experts:
        writer.add_expert_count(num_experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config.get("moe_intermediate_size", config["intermediate_size"]))


def llama3_factors(rope: dict[str, Any], head_dim: int) -> Sequence[float]:
    """As llama.cpp's converter computes them."""
    factors = []
    for i in range(0, head_dim, 2):
        wave_length = 2 * np.pi * rope["rope_theta"] ** (i / head_dim)
        low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
        high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
        if wave_length < high:
            factors.append(1.0)
        elif wave_length > low:
            factors.append(rope["factor"])
        else:
            smooth = (rope["original_max_position_embeddings"] / wave_length - rope["low_freq_factor"]) / (
                rope["high_freq_factor"] - rope["low_freq_factor"]
            )
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return factors


def _add_tokenizer(writer: gguf.GGUFWriter, vocab_size: int) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(chr(256 + index) for index in range(vocab_size - 3))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (vocab_size - 3))
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def add_tokenizer_of(writer: gguf.GGUFWriter, source: Path, pre: str = "gpt-2") -> None:
    """Add a directory's byte-level tokenizer and chat template."""
    stored = json.loads((source / "tokenizer.json").read_text())
    special = {each["content"]: each["special"] for each in stored["added_tokens"]}
    by_id = {each["id"]: each["content"] for each in stored["added_tokens"]}
    by_id |= {place: token for token, place in stored["model"]["vocab"].items()}
    kinds = {True: gguf.TokenType.CONTROL, False: gguf.TokenType.USER_DEFINED, None: gguf.TokenType.NORMAL}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([by_id[place] for place in range(len(by_id))])
    writer.add_token_types([kinds[special.get(by_id[place])] for place in range(len(by_id))])
    writer.add_token_merges(
        [merge if isinstance(merge, str) else " ".join(merge) for merge in stored["model"]["merges"]]
    )
    settings = json.loads((source / "tokenizer_config.json").read_text())
    ids = {token: place for place, token in by_id.items()}
    for name, add in (("bos_token", writer.add_bos_token_id), ("eos_token", writer.add_eos_token_id)):
        if settings.get(name) is not None:
            add(ids[settings[name]])
    template = source / "chat_template.jinja"
    writer.add_chat_template(template.read_text() if template.exists() else settings["chat_template"])
