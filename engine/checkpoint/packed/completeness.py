"""Check of a checkpoint's packed matrices by their tensors' headers, before any process loads them. No torch."""

from collections.abc import Mapping
from pathlib import Path

from baton.engine.checkpoint.packed.scheme import PackedScheme
from baton.engine.checkpoint.stored_quantization import StoredQuantization
from baton.engine.checkpoint.stored_tensor import StoredTensor
from baton.engine.checkpoint.tensor_index import read_tensors
from baton.engine.errors import InvalidCheckpoint

WORD_BITS = 32
# Suffixes of what belongs to the codes of a matrix.
COMPANIONS = {".qweight": (".scales", ".qzeros"), ".weight_packed": (".weight_scale",)}


def check_packed(directory: Path, stored: StoredQuantization | None) -> None:
    """Raise InvalidCheckpoint, naming a tensor of the files that is damaged, or lacks those that belong to it."""
    if stored is None or not stored.packed.has_any:
        return
    tensors = read_tensors(directory)
    for name, tensor in tensors.items():
        suffix = next((each for each in COMPANIONS if name.endswith(each)), None)
        if suffix is not None:
            module = name.removesuffix(suffix)
            _check(tensors, tensor, module, suffix, stored.packed.scheme_of(module) or stored.packed.default)


def _check(
    tensors: Mapping[str, StoredTensor], tensor: StoredTensor, module: str, suffix: str, scheme: PackedScheme | None
) -> None:
    for companion in COMPANIONS[suffix]:
        if module + companion not in tensors:
            raise InvalidCheckpoint(f"tensor {module}{companion} is missing from the checkpoint")
    if scheme is None or scheme.group_size is None or len(tensor.shape) != 2:
        return
    columns = _columns(tensor, scheme)
    if columns % scheme.group_size:
        raise InvalidCheckpoint(
            f"{tensor.name} has {columns} input columns, which groups of {scheme.group_size} do not divide"
        )


def _columns(tensor: StoredTensor, scheme: PackedScheme) -> int:
    rows, columns = tensor.shape
    if scheme.layout == "awq":
        return rows
    if scheme.layout == "gptq":
        return rows * (WORD_BITS // scheme.bits)
    return columns * (8 * tensor.num_bytes // max(rows * columns, 1)) // scheme.bits
