"""Number of weights in a checkpoint, and their memory once loaded; no torch."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from baton.engine.checkpoint.tensor_index import StoredTensor, read_tensors
from baton.engine.config import ModelConfig

ITEM_BYTES = {"bfloat16": 2, "float32": 4}
SCALES = ("_scale", "_scale_inv")  # suffixes of a quantized weight's scales


def num_parameters(directory: Path, model: ModelConfig) -> int:
    """Return the number of loaded weights, as counted in model names such as 8B. Raises InvalidCheckpoint."""
    return sum(prod(tensor.shape) for tensor in _loaded(directory, model) if not tensor.name.endswith(SCALES))


def weights_bytes(directory: Path, model: ModelConfig, quantization: str | None) -> int:
    """Return the bytes that the whole model's weights take on a CPU. Raises InvalidCheckpoint.

    On a CPU, FP8 matrices are dequantised, embeddings are never quantised, and an output layer that shares the
    embedding's weights has a copy of them in its own layout.
    """
    item_bytes = ITEM_BYTES[model.dtype]
    linear_bytes = 1 if quantization == "int8" else item_bytes
    embedding = model.vocab_size * model.hidden_size
    num_linear = num_parameters(directory, model) - (0 if model.tie_word_embeddings else embedding)
    return embedding * item_bytes + num_linear * linear_bytes


def _loaded(directory: Path, model: ModelConfig) -> Iterator[StoredTensor]:
    """Return the tensors that a worker loads: all except the multi-token prediction layers after the last layer."""
    last = model.num_layers + model.num_nextn_predict_layers
    left_out = tuple(f"model.layers.{layer}." for layer in range(model.num_layers, last))
    return (tensor for name, tensor in read_tensors(directory).items() if not name.startswith(left_out))
