"""Weights offload on the device compared with the same engine with all weights in its memory, bit for bit.

On a GPU the weights are in host memory, on a CPU in a file. A model that is large enough must also save GPU memory.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import safe_open

from benchmarks.gpu.engine_session import Answer, EngineSession, greedy, random_prompts, start_engine
from benchmarks.gpu.small_models import SmallModel, saved
from benchmarks.gpu.stage import Record, Setting
from benchmarks.quantization.formats import FORMATS

SIZES = {"hidden_size": 256, "intermediate_size": 512, "initializer_range": 0.06, "head_dim": 64}
LAYERS = {"num_hidden_layers": 7}  # an odd number: the buffers change places from step to step
DENSE = SmallModel("qwen3", SIZES | LAYERS)
MODELS = (
    DENSE,
    SmallModel("llama3", SIZES | LAYERS),
    SmallModel("gemma2", SIZES | {"head_dim": 256, "query_pre_attn_scalar": 4096}),
    SmallModel("qwen3.5", SIZES | {"head_dim": 128, "linear_key_head_dim": 64, "linear_value_head_dim": 64}),
    SmallModel("nemotron-h", SIZES),
)
# Formats, and about how large weights are compared with bf16. On a CPU, FP8 weights become bf16.
PACKED = {"int4 at load": 0.3, "GPTQ, 4 bits": 0.3, "FP8, blocks of 128 x 128": 0.55}
LARGE = SmallModel(
    "llama3",
    {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "head_dim": 64,
        "num_attention_heads": 16,
        "num_hidden_layers": 16,
    },
)
KINDS = {"cuda": "host", "cpu": "disk"}
SPARE = 1.05  # of the memory for two layers
OTHER_BYTES = 1 << 19  # embeddings, output layer and norms, which count on a CPU
SAVED_SHARE = 0.8  # of the layers' bytes that do not fit, which peak memory must be smaller by
PROMPT_LENS = (5, 70, 1, 33, 120, 16)
NUM_TOKENS = 16
# Bits are those of the same kernels, so neither side replays CUDA graphs.
ENGINE: dict[str, Any] = {
    "dtype": "bfloat16",
    "enforce_eager": True,
    "max_num_batched_tokens": 64,
    "kv_cache_memory_bytes": 64 << 20,
    "state_checkpoint_tokens": 32,
}


@dataclass(frozen=True, slots=True)
class Run:
    """Outputs of an engine, the bytes that it copied, and the peak of its GPU memory, on a CPU 0."""

    answers: dict[str, Answer]
    num_copied_bytes: int
    peak_bytes: int
    freed_bytes: int = 0  # by offload


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes of a checkpoint's layers in bf16."""

    total: int
    largest: int

    @classmethod
    def of(cls, directory: Path) -> "LayerBytes":
        """Read the shapes of a checkpoint."""
        sizes: Counter[str] = Counter()
        with safe_open(directory / "model.safetensors", framework="pt") as checkpoint:
            for name in tuple(checkpoint.keys()):
                if ".layers." in name:
                    layer = name.split(".layers.")[1].split(".")[0]
                    sizes[layer] += 2 * prod(checkpoint.get_slice(name).get_shape())
        return cls(sizes.total(), max(sizes.values()))


def run_of(directory: Path, setting: Setting, **options: Any) -> Run:
    """Run requests that join step by step, and again from the prefix cache."""
    if setting.device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(setting.device)
    engine = start_engine(directory, setting, **(ENGINE | options))
    session, prompts = EngineSession(engine), random_prompts(PROMPT_LENS, engine.model_config.vocab_size)
    for turn in range(2):
        for index, prompt in enumerate(prompts):
            session.add(f"{turn} {index}", prompt, greedy(NUM_TOKENS, logprobs=2))
            session.run_on(index % 3)
        session.finish()
    num_bytes = engine.stats().offload.num_read_bytes
    peak = torch.cuda.max_memory_allocated(setting.device) if setting.device.type == "cuda" else 0
    engine.close()
    return Run(session.answers, num_bytes, peak)


def check_offload(
    record: Record, setting: Setting, case: str, directory: Path, memory_bytes: int, **options: Any
) -> Run:
    """Compare outputs with those of the model without offload, and return its run."""
    expected = run_of(directory, setting, **options)
    on_gpu = setting.device.type == "cuda"
    offload: dict[str, Any] = {"weights_offload": KINDS[setting.device.type], **options}
    offload["weights_memory_bytes"] = memory_bytes if on_gpu else memory_bytes + OTHER_BYTES
    with TemporaryDirectory(dir=setting.directory) as new:
        ours = run_of(directory, setting, **offload, **({} if on_gpu else {"weights_offload_dir": new}))
    differing = [name for name, answer in expected.answers.items() if ours.answers[name] != answer]
    record.find(
        f"{case}: bits", not differing, f"{len(differing)} of {len(expected.answers)} outputs or logprobs differ"
    )
    record.find(f"{case}: copies", ours.num_copied_bytes > 0, f"{ours.num_copied_bytes / 1e6:.1f} MB were copied")
    return replace(ours, freed_bytes=expected.peak_bytes - ours.peak_bytes)


def check_model(record: Record, setting: Setting, model: SmallModel) -> None:
    """Compare a small model, of which two layers fit."""
    directory = saved(model, setting.directory / "offload")
    check_offload(record, setting, model.architecture, directory, int(2 * SPARE * LayerBytes.of(directory).largest))


def check_packed(record: Record, setting: Setting, name: str) -> None:
    """Compare a small model in a packed format."""
    fmt, source = next(each for each in FORMATS if each.name == name), saved(DENSE, setting.directory / "offload")
    memory_bytes = int(2 * SPARE * PACKED[name] * LayerBytes.of(source).largest)
    with TemporaryDirectory(dir=setting.directory) as new:
        if fmt.write is not None:
            source = fmt.write(saved(DENSE, setting.directory / "offload", torch.float32), Path(new))
        case = f"{DENSE.architecture}, {name}"
        check_offload(record, setting, case, source, memory_bytes, quantization=fmt.quantization)


def check_memory(record: Record, setting: Setting) -> None:
    """Compare a larger model, and the peaks of GPU memory."""
    directory = saved(LARGE, setting.directory / "offload large")
    size = LayerBytes.of(directory)
    memory_bytes = int(2 * SPARE * size.largest)
    freed = check_offload(record, setting, "large", directory, memory_bytes).freed_bytes
    least = SAVED_SHARE * (size.total - memory_bytes)
    record.find(
        "large: peak memory",
        freed >= least,
        f"{freed / 1e6:.0f} MB less than without offload, of {size.total / 1e6:.0f} MB of layers; at least "
        f"{least / 1e6:.0f} MB are expected",
    )


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    torch.manual_seed(0)
    on_gpu = setting.device.type == "cuda"
    for model in MODELS[: 1 if setting.is_quick else None]:
        record.attempt(model.architecture, partial(check_model, record, setting, model))
    for name in [*PACKED][: 1 if setting.is_quick else len(PACKED) if on_gpu else -1]:
        record.attempt(name, partial(check_packed, record, setting, name))
    if on_gpu:
        record.attempt("large", partial(check_memory, record, setting))
