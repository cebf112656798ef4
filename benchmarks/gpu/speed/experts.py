"""Decode steps of a model with experts in the shape of Qwen3-30B-A3B, with a quarter of its layers."""

from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.gpu.engine_session import EngineSession, start_engine
from benchmarks.gpu.speed.decode import COLUMNS, kv_bytes, measure, row
from benchmarks.gpu.speed.kernels import NAME_LENGTH, NUM_STEPS, kernel_times
from benchmarks.gpu.speed.large_model import SEED, TensorSpec, drawn, write_weights
from benchmarks.gpu.speed.roofline import limits_of
from benchmarks.gpu.stage import Record, Setting

BATCHES = {False: (1, 8, 64, 256), True: (1, 3)}
CONTEXT = {False: 1024, True: 64}
MOST_SHOWN = 8  # requests of a step whose kernels are shown
MOST_KERNELS = 16
NUM_LAYERS = 12  # of 48: a step of all layers takes four times as long, but for the head
QWEN3_30B_A3B: dict[str, Any] = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "moe_intermediate_size": 768,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "max_position_embeddings": 40960,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
}
QUICK = QWEN3_30B_A3B | {
    "vocab_size": 320,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}


def shapes_of(config: transformers.Qwen3MoeConfig) -> dict[str, torch.Size]:
    """Return the shapes of the checkpoint's tensors by their names on the hub."""
    hidden, inner, width = config.hidden_size, config.moe_intermediate_size, config.head_dim
    queries, keys = config.num_attention_heads * width, config.num_key_value_heads * width
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (width,),
        "self_attn.k_norm": (width,),
        "mlp.gate": (config.num_experts, hidden),
    }
    for expert in range(config.num_experts):
        layer[f"mlp.experts.{expert}.gate_proj"] = inner, hidden
        layer[f"mlp.experts.{expert}.up_proj"] = inner, hidden
        layer[f"mlp.experts.{expert}.down_proj"] = hidden, inner
    shapes = {"model.embed_tokens.weight": torch.Size((config.vocab_size, hidden))}
    for index in range(config.num_hidden_layers):
        shapes |= {f"model.layers.{index}.{name}.weight": torch.Size(shape) for name, shape in layer.items()}
    return shapes | {"model.norm.weight": torch.Size((hidden,)), "lm_head.weight": shapes["model.embed_tokens.weight"]}


def ensure_model(setting: Setting) -> tuple[Path, transformers.Qwen3MoeConfig]:
    """Return the checkpoint and its config; create it if it is missing."""
    options = QUICK if setting.is_quick else QWEN3_30B_A3B
    config = transformers.Qwen3MoeConfig(**options, dtype=setting.dtype_name)
    config.architectures = ["Qwen3MoeForCausalLM"]
    directory = setting.directory / "qwen3-30b-a3b-shape"
    if not (directory / "config.json").exists():
        directory.mkdir(parents=True, exist_ok=True)
        shapes, generator = shapes_of(config), torch.Generator(setting.device).manual_seed(SEED)
        specs = {name: TensorSpec(setting.dtype, shape) for name, shape in shapes.items()}
        write_weights(specs, directory / "model.safetensors", lambda name: drawn(name, shapes[name], generator))
        transformers.GenerationConfig(eos_token_id=2).save_pretrained(directory)
        config.save_pretrained(directory)  # last, as the mark of a complete checkpoint
    return directory, config


def step_bytes(config: transformers.Qwen3MoeConfig, batch: int, context: int, item: int) -> float:
    """Return the bytes that a step reads at least: KV, and the weights of the experts that are chosen.

    If tokens choose evenly and independently, E * (1 - (1 - k / E) ** batch) of E experts are chosen by any of them.
    """
    hidden, width, count = config.hidden_size, config.head_dim, config.num_experts
    chosen = count * (1 - (1 - config.num_experts_per_tok / count) ** batch)
    experts = chosen * 3 * hidden * config.moe_intermediate_size
    attention = 2 * hidden * width * (config.num_attention_heads + config.num_key_value_heads)
    kv = 2 * batch * context * config.num_key_value_heads * width
    per_layer = experts + attention + count * hidden + kv
    return item * (config.num_hidden_layers * per_layer + config.vocab_size * hidden)


def note_kernels(record: Record, session: EngineSession, setting: Setting, batch: int, context: int) -> None:
    """Note the kernels of a step that take longest: launches and microseconds of a step."""
    times = kernel_times(session, setting, batch, context)
    count, total_us = sum(map(len, times.values())) / NUM_STEPS, sum(map(sum, times.values())) / NUM_STEPS
    record.note(f"{batch} requests: {count:.0f} launches, {total_us:.0f} us in all")
    for name, each in list(times.items())[:MOST_KERNELS]:
        launches, us = len(each) / NUM_STEPS, sum(each) / NUM_STEPS
        record.note(f"{batch} requests: {launches:.0f} launches, {us:.0f} us: {name[:NAME_LENGTH]}")


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    limits, batches, context = limits_of(setting), BATCHES[setting.is_quick], CONTEXT[setting.is_quick]
    directory, config = ensure_model(setting)
    engine = start_engine(
        directory,
        setting,
        kv_cache_memory_bytes=kv_bytes(setting),
        max_num_seqs=max(batches),
        max_model_len=context + 256,
        enable_prefix_caching=False,
    )
    session = EngineSession(engine)
    for batch in batches:
        measured = measure(session, setting, batch, context)
        if measured is None:
            record.note(f"{batch} requests of {context} tokens: their KV does not fit")
            continue
        step_s, busy_s = measured
        least_s = step_bytes(config, batch, context, setting.dtype.itemsize) / limits.bytes_per_s
        record.add_row(COLUMNS, *row(batch, context, step_s, busy_s, least_s))
        if batch <= MOST_SHOWN:
            note_kernels(record, session, setting, batch, context)
    engine.close()
