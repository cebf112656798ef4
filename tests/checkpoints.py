"""Tiny random checkpoints of every architecture, saved by transformers as it saves real ones."""

import atexit
import hashlib
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from baton.engine.checkpoint.weights_hash import WeightsHash
from tests.architectures import ARCHITECTURES, COMMON


def make_checkpoint(
    architecture: str,
    directory: Path,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    tokenizer: Tokenizer | None = None,
    max_shard_size: str = "50GB",
    **overrides: Any,
) -> Path:
    """Do what `save_checkpoint` does. A process saves each checkpoint once, and copies it afterwards."""
    vocabulary = tokenizer.to_str() if tokenizer is not None else ""
    spec = repr((architecture, seed, dtype, vocabulary, max_shard_size, sorted(overrides.items())))
    saved = _saved_checkpoints() / hashlib.sha256(spec.encode()).hexdigest()
    if not saved.exists():
        part = saved.with_suffix(".part")
        save_checkpoint(architecture, part, seed, dtype, tokenizer, max_shard_size, **overrides).rename(saved)
    shutil.copytree(saved, directory, copy_function=shutil.copyfile, dirs_exist_ok=True)
    return directory


@cache
def _saved_checkpoints() -> Path:
    """Return this process's directory of saved checkpoints, which is removed at its end."""
    directory = Path(tempfile.mkdtemp(prefix="checkpoints-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def save_checkpoint(
    architecture: str,
    directory: Path,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    tokenizer: Tokenizer | None = None,
    max_shard_size: str = "50GB",
    **overrides: Any,
) -> Path:
    """Saves a random model of one of ARCHITECTURES, its options replaced by `overrides`; returns the directory.

    Norms, biases and correction biases are random too, and logits are spread widely, so that a model computed wrongly
    says other tokens.
    """
    import transformers

    config_name, options = ARCHITECTURES[architecture]
    config = getattr(transformers, config_name)(**(COMMON | options | overrides))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomise(model)
    model.to(dtype).save_pretrained(directory, max_shard_size=max_shard_size)
    if tokenizer is not None:
        wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
        wrapped.save_pretrained(directory)
    return directory


def randomise(model: torch.nn.Module) -> None:
    """Gives values to what starts as ones or zeros; matrices are random already."""
    norms = (
        "norm.weight",
        "layernorm_1.weight",
        "layernorm_2.weight",
        "norm1.weight",
        "norm2.weight",
        "ln_q.weight",
        "norm_f.weight",
    )
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name.endswith("q_norm.weight") and getattr(model.config, "model_type", "") == "gemma4_text":
                tensor.uniform_(0.1, 0.4)  # its scores are not scaled; sharp ones multiply rounding errors
            elif name.endswith((*norms, "router.scale", "expert_scale", ".D")):
                tensor.uniform_(0.5, 1.5)
            elif name.endswith("layer_scalar"):
                tensor.uniform_(0.6, 1.1)
            elif name.endswith("conv1d.weight"):
                tensor.normal_(std=0.6)
            elif name.endswith(
                "A_log"
            ):  # with faster decays outputs are near zero, where their norms are ill-conditioned
                tensor.uniform_(-5, -2)
            elif name.endswith("dt_bias"):
                tensor.uniform_(-1, 1)
            elif name.endswith("sinks"):
                tensor.uniform_(-1, 3)
            elif name.endswith("correction_bias"):
                tensor.uniform_(-0.3, 0.3)
            elif name.endswith((".experts.gate_up_proj", ".experts.down_proj")) and not tensor.any():
                tensor.normal_(std=0.15)
            elif name.endswith((".bias", "_proj_bias")):
                tensor.uniform_(-0.5, 0.5)


def weights_revision(directory: Path) -> str:
    """Hash a checkpoint's weights."""
    with WeightsHash(directory) as weights_hash:
        return weights_hash.revision()
