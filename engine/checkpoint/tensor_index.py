"""Index of the tensors in a checkpoint's files, of safetensors or GGUF. No torch, and no tensor data.

Format: https://github.com/huggingface/safetensors#format (8 bytes of length, a JSON header, the tensors' bytes).
"""

import json
from collections import Counter
from pathlib import Path
from typing import BinaryIO

from baton.engine.checkpoint.gguf.tensors import read_gguf_tensors
from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.checkpoint.stored_tensor import MAX_NAME_CHARS, StoredTensor, file_status
from baton.engine.errors import InvalidCheckpoint

GGUF = ".gguf"
MAX_HEADER_BYTES = 100 << 20  # the format's limit
MAX_DIMENSIONS = 64
MAX_COUNT = (1 << 63) - 1
DTYPES = {
    "BF16": "bfloat16",
    "F32": "float32",
    "F16": "float16",
    "F8_E4M3": "float8_e4m3fn",
    "I32": "int32",
    "I64": "int64",
    "I8": "int8",
    "U8": "uint8",
}
ITEM_BYTES = {"BF16": 2, "F32": 4, "F16": 2, "F8_E4M3": 1, "I32": 4, "I64": 8, "I8": 1, "U8": 1}


def read_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Return all tensors of a checkpoint by name.

    Raises InvalidCheckpoint naming a file or tensor that is missing, truncated or duplicated.
    """
    files = weight_files(directory)
    if files[0].suffix == GGUF:
        return read_gguf_tensors(files)
    tensors: dict[str, StoredTensor] = {}
    for file in files:
        for tensor in read_header(file):
            if tensor.name in tensors:
                raise InvalidCheckpoint(f"{tensor.name} is in {tensors[tensor.name].file.name} and in {file.name}")
            tensors[tensor.name] = tensor
    _check_index(directory, tensors)
    return tensors


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files: `model.safetensors`, the files named by the index, or all GGUF files, sorted by name."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if (alone := _file_alone(directory)) is not None:
        return [alone]
    if not index.exists() and (parts := sorted(directory.glob(f"*{GGUF}"))):
        return parts
    if not index.exists():
        raise InvalidCheckpoint(f"{directory} has neither {single.name} nor {index.name}; other formats are not read")
    return [directory / name for name in sorted(set(_index_map(index).values()))]


def stored_dtype(directory: Path) -> str:
    """Return the most frequent dtype of a checkpoint's tensors. Raises InvalidCheckpoint if there are none."""
    counts = Counter(tensor.dtype for tensor in read_tensors(directory).values())
    if not counts:
        raise InvalidCheckpoint(f"{directory} holds no tensors")
    return counts.most_common(1)[0][0]


def read_header(path: Path) -> list[StoredTensor]:
    """Return the tensors of a file of safetensors. Raises InvalidCheckpoint if it is missing, truncated or damaged."""
    size = file_status(path).st_size
    with _open(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise InvalidCheckpoint(f"{path} is truncated or not a safetensors file")
        try:
            header = json.loads(file.read(length))
            tensors = [
                _entry(path, name, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InvalidCheckpoint(f"{path} has a damaged header: {type(error).__name__}: {error}") from error
    end = 8 + length
    for tensor in sorted(tensors, key=lambda each: (each.offset, each.num_bytes)):
        if tensor.offset != end:
            raise InvalidCheckpoint(
                f"{path} has a damaged header: {tensor.name} begins at byte {tensor.offset} instead of {end}"
            )
        end += tensor.num_bytes
    if end != size:
        raise InvalidCheckpoint(f"{path} has {size} bytes, but its header says {end}: it is truncated or damaged")
    return tensors


def _entry(path: Path, name: str, entry: dict[str, object], data_start: int) -> StoredTensor:
    """Parse one header entry. Raises KeyError, TypeError or ValueError if it is invalid."""
    if not _is_name(name):
        raise ValueError(f"the tensor name {shown(name)}")
    dtype, sizes, offsets = entry["dtype"], _counts(entry["shape"], name), _counts(entry["data_offsets"], name)
    if not isinstance(dtype, str) or not _is_name(dtype):
        raise TypeError(f"the dtype of {name}")
    start, end = offsets
    num_elements = 1
    for dimension in sizes:
        num_elements *= dimension
    if start > end or (dtype in ITEM_BYTES and end - start != num_elements * ITEM_BYTES[dtype]):
        raise ValueError(f"the offsets of {name}")
    return StoredTensor(name, path, DTYPES.get(dtype, dtype), sizes, data_start + start, end - start)


def _counts(values: object, name: str) -> tuple[int, ...]:
    """Parse a list of sizes or offsets. Raises TypeError or ValueError."""
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise TypeError(f"the shape or offsets of {name}")
    if len(values) > MAX_DIMENSIONS or not all(0 <= value <= MAX_COUNT for value in values):
        raise ValueError(f"the sizes or offsets of {name}")
    return tuple(values)


def _file_alone(directory: Path) -> Path | None:
    """Return the only weight file, if it has one of the usual names; that of Medusa heads differs from a model's.

    The heads may lie next to the model for which they draft, whose own files are then read.
    """
    single, heads = directory / "model.safetensors", directory / "medusa_lm_head.safetensors"
    if single.exists():
        return single
    has_model = (directory / "model.safetensors.index.json").exists() or any(directory.glob(f"*{GGUF}"))
    return heads if heads.exists() and not has_model else None


def _check_index(directory: Path, tensors: dict[str, StoredTensor]) -> None:
    """Check that the index, if it is used, agrees with the files. Raises InvalidCheckpoint."""
    index = directory / "model.safetensors.index.json"
    if _file_alone(directory) is not None:
        return
    for name, file in _index_map(index).items():
        if name not in tensors or tensors[name].file.name != file:
            raise InvalidCheckpoint(f"{name} is not in {file}, although {index.name} says so")


def _index_map(index: Path) -> dict[str, str]:
    entries = JsonObject.read(index).inner("weight_map").values
    # Only plain file names are accepted, no paths: an index cannot point outside its directory.
    files = {name: file for name, file in entries.items() if isinstance(file, str) and Path(file).name == file}
    if not files or len(files) != len(entries) or not all(map(_is_name, [*files, *set(files.values())])):
        raise InvalidCheckpoint(f"{index} has no valid weight_map")
    return files


def _is_name(text: str) -> bool:
    """Return whether a tensor, dtype or file name is acceptable: names appear in logs and errors."""
    return 0 < len(text) <= MAX_NAME_CHARS and text.isprintable() and text != ".."


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
