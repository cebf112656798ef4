"""How many weights a checkpoint has, and the memory they take once loaded; no torch."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from baton.engine.checkpoint.tensor_index import StoredTensor, read_tensors
from baton.engine.config import ModelConfig

ITEM_BYTES = {"bfloat16": 2, "float32": 4}
SCALES = ("_scale", "_scale_inv")  # what the names of a quantized weight's scales end with


def num_parameters(directory: Path, model: ModelConfig) -> int:
    """Number of weights that are loaded, as they are counted in a model's name. Raises InvalidCheckpoint."""
    return sum(prod(tensor.shape) for tensor in _loaded(directory, model) if not tensor.name.endswith(SCALES))


def weights_bytes(directory: Path, model: ModelConfig, quantization: str | None) -> int:
    """Memory of the whole model's weights on a CPU. Raises InvalidCheckpoint.

    Matrices in FP8 are dequantised there, embeddings are never quantised, and an output layer that shares the
    embedding's weights has a copy of them in its own layout.
    """
    item_bytes = ITEM_BYTES[model.dtype]
    linear_bytes = 1 if quantization == "int8" else item_bytes
    embedding = model.vocab_size * model.hidden_size
    num_linear = num_parameters(directory, model) - (0 if model.tie_word_embeddings else embedding)
    return embedding * item_bytes + num_linear * linear_bytes


def _loaded(directory: Path, model: ModelConfig) -> Iterator[StoredTensor]:
    """The tensors that a worker loads: all but the speculative layers behind the last one."""
    last = model.num_layers + model.num_nextn_predict_layers
    left_out = tuple(f"model.layers.{layer}." for layer in range(model.num_layers, last))
    return (tensor for name, tensor in read_tensors(directory).items() if not name.startswith(left_out))
