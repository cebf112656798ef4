"""Number of weights in a checkpoint, and their memory once loaded; no torch."""

from collections.abc import Iterator
from math import prod
from pathlib import Path

from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.checkpoint.stored_tensor import StoredTensor
from baton.engine.checkpoint.tensor_index import read_tensors
from baton.engine.checkpoint.tensor_prefixes import under_model
from baton.engine.config import ModelConfig
from baton.engine.families.registry import family_of
from baton.engine.families.tensor_names import replaced_kv

LAYERS = "model.layers."
HEAD_MODULE = "lm_head."
OTHER_EMBEDDING = "embed_tokens_per_layer.weight"
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
# Suffixes of what belongs to a quantized matrix, besides its codes.
OF_QUANTIZED = (
    *("_scale", "_scale_inv", "_scales", ".scales", ".qzeros", ".g_idx"),
    *(".weight_zero_point", ".weight_g_idx", ".weight_shape", "_global_scale"),
)
CODES = (".qweight", ".weight_packed")  # suffixes of packed codes, whose shape is not the matrix's
PAIRS = "_blocks"  # suffix of GPT-OSS's experts, two codes in a byte
PACKED_TYPES = ("int8", "uint8", "gguf")  # beginnings of the dtypes of packed matrices that have their own shape
LINEAR_BYTES = {"int8": 1.0, "int4": 0.5 + 3 / 128}  # of a weight, with the scale and zero point of its group


def num_parameters(directory: Path, model: ModelConfig) -> int:
    """Return the number of loaded weights, as counted in model names such as 8B. Raises InvalidCheckpoint."""
    return sum(_num_weights(tensor, model.stored_quantization) for tensor in _loaded(directory, model))


def weights_bytes(
    directory: Path, model: ModelConfig, quantization: str | None, *, outside_of_layers: bool = False
) -> int:
    """Return the bytes that the whole model's weights take on a CPU, or those outside of its layers.

    Raises InvalidCheckpoint.

    On a CPU, FP8 matrices are dequantised, embeddings are not quantised, and an output layer that shares the
    embedding's weights has a copy of them in its own layout; it is not rounded to int4. Packed matrices stay as large
    as they are stored, unless they are converted to int8.
    """
    item_bytes = ITEM_BYTES[model.dtype]
    linear_bytes = item_bytes if quantization is None else LINEAR_BYTES[quantization]
    packed_bytes, num_plain, num_linear = 0, 0, 0
    loaded = list(_loaded(directory, model))
    is_tied = model.tie_word_embeddings and not any(tensor.name.startswith(HEAD_MODULE) for tensor in loaded)
    for tensor in loaded:
        if outside_of_layers and tensor.name.startswith(LAYERS):
            continue
        count = _num_weights(tensor, model.stored_quantization)
        if _is_packed(tensor, model.stored_quantization) and quantization != "int8":
            packed_bytes += tensor.num_bytes
        elif (tensor.name == HEAD and quantization == "int4") or tensor.name.endswith(OTHER_EMBEDDING):
            num_plain += count
        elif not tensor.name.endswith(EMBEDDING):
            num_linear += count
        elif is_tied and quantization != "int4":
            num_plain, num_linear = num_plain + count, num_linear + count
        else:
            num_plain += (1 + is_tied) * count
    return packed_bytes + num_plain * item_bytes + round(num_linear * linear_bytes)


def _num_weights(tensor: StoredTensor, stored: StoredQuantization | None) -> int:
    if tensor.name.endswith(OF_QUANTIZED):
        return 0
    if tensor.name.endswith(PAIRS):
        return 2 * tensor.num_bytes
    suffix = next((each for each in CODES if tensor.name.endswith(each)), None)
    if suffix is None or stored is None:
        return prod(tensor.shape)
    module = tensor.name.removesuffix(suffix)
    scheme = stored.packed.scheme_of(module) or stored.packed.default
    return tensor.num_bytes * 8 // (scheme.bits if scheme is not None else 8)


def _is_packed(tensor: StoredTensor, stored: StoredQuantization | None) -> bool:
    belongs = stored is not None and stored.packed.has_any and tensor.name.endswith((*CODES, *OF_QUANTIZED))
    return belongs or tensor.dtype.startswith(PACKED_TYPES)


def _loaded(directory: Path, model: ModelConfig) -> Iterator[StoredTensor]:
    """Return the tensors that a worker loads: all except multi-token prediction and other parts of no use to it.

    Some checkpoints store an output layer although it is tied to the embedding; most families then ignore it.
    """
    family = family_of(model.architecture)
    last = model.num_layers + model.num_nextn_predict_layers
    left_out = tuple(f"model.layers.{layer}." for layer in range(model.num_layers, last))
    if model.tie_word_embeddings and not family.prefers_stored_head:
        left_out = (*left_out, HEAD)
    left_out = (*left_out, *replaced_kv(model))
    tensors = under_model(read_tensors(directory), family.prefixes)
    return (tensor for name, tensor in tensors.items() if not name.startswith((*left_out, *family.unused)))
