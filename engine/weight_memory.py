"""How many weights a checkpoint has, and the memory they take once loaded; no torch."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from baton.engine.checkpoint import StoredTensor, read_tensors
from baton.engine.config import ModelConfig

ITEM_BYTES = {"bfloat16": 2, "float32": 4}
CONVERTED = ("bfloat16", "float16", "float32")  # stored types that are loaded as the type of what is computed
SCALES = ("_scale", "_scale_inv")  # what the names of a quantized weight's scales end with


def num_parameters(directory: Path, model: ModelConfig) -> int:
    """Number of weights that are loaded, as they are counted in a model's name. Raises InvalidCheckpoint."""
    return sum(prod(tensor.shape) for tensor in _loaded(directory, model) if not tensor.name.endswith(SCALES))


def weights_bytes(directory: Path, model: ModelConfig, quantization: str | None) -> int:
    """Memory of the whole model's weights, in the type in which they are computed. Raises InvalidCheckpoint."""
    item_bytes = 1 if quantization == "int8" else ITEM_BYTES[model.dtype]
    return sum(
        prod(tensor.shape) * item_bytes if tensor.dtype in CONVERTED else tensor.num_bytes
        for tensor in _loaded(directory, model)
    )


def _loaded(directory: Path, model: ModelConfig) -> Iterator[StoredTensor]:
    """The tensors that a worker loads: all but the speculative layers behind the last one."""
    last = model.num_layers + model.num_nextn_predict_layers
    left_out = tuple(f"model.layers.{layer}." for layer in range(model.num_layers, last))
    return (tensor for name, tensor in read_tensors(directory).items() if not name.startswith(left_out))
