"""Checkpoints of the matrix's rows."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from baton.engine.checkpoint.gguf.directory import checkpoint_directory
from tests.checkpoints import make_checkpoint
from tests.integration.handover.test_architectures import any_tokenizer
from tests.marked_checkpoints import BUNDLED, marked_checkpoint
from tests.unit.engine.packed.gguf_writer import Type, write_gguf
from tests.unit.engine.packed.packed_writer import FORMATS, write_packed
from tests.vision_checkpoints import make_served_vision_model

THINKING_PROMPT = "<|im_start|>assistant\\n<think>\\n"


def bundled(directory: Path) -> Path:
    """Return the bundled model."""
    return BUNDLED


def thinking(directory: Path) -> Path:
    """Return a copy of the bundled model whose prompts open the reasoning, and which ends it with one token."""
    marks = ("<think>", "</think>")
    return marked_checkpoint(directory / "model", "".join(marks), marks, generation_prompt=THINKING_PROMPT)


def random_model(architecture: str, directory: Path) -> Path:
    """Return a random model with a tokenizer."""
    return make_checkpoint(architecture, directory / "model", tokenizer=any_tokenizer())


def gptq(directory: Path) -> Path:
    """Return a random model in GPTQ's format."""
    return write_packed(random_model("qwen3", directory), directory, FORMATS["gptq-order"]).packed


def gguf(directory: Path) -> Path:
    """Return the directory of the bundled model as a GGUF file."""
    written = write_gguf(BUNDLED, directory / "gguf", Type.Q8_0)
    return checkpoint_directory(written.file, directory / "cache")


def images(directory: Path) -> Path:
    """Return a random model that takes images."""
    return make_served_vision_model(directory / "model")


MAKERS: Mapping[str, Callable[[Path], Path]] = {
    "bundled": bundled,
    "thinking": thinking,
    "gptq": gptq,
    "gguf": gguf,
    "images": images,
    **{name: partial(random_model, name) for name in ("gemma3", "qwen3-next", "deepseek-v3", "llama3", "mixtral")},
}
