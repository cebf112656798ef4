"""Index of the tensors in a checkpoint's safetensors files. No torch, and no tensor data.

Format: https://github.com/huggingface/safetensors#format (8 bytes of length, a JSON header, the tensors' bytes).
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel

MAX_HEADER_BYTES = 100 << 20  # the format's limit
MAX_NAME_CHARS = 512
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


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Location, dtype and shape of a stored tensor."""

    name: str
    file: Path
    dtype: str  # one of DTYPES' values, or the format's name of any other dtype
    shape: tuple[int, ...]
    offset: int  # of the first byte in the file
    num_bytes: int


def read_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Return all tensors of a checkpoint by name.

    Raises InvalidCheckpoint naming a file or tensor that is missing, truncated or duplicated.
    """
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(directory):
        for tensor in _read_header(file):
            if tensor.name in tensors:
                raise InvalidCheckpoint(f"{tensor.name} is in {tensors[tensor.name].file.name} and in {file.name}")
            tensors[tensor.name] = tensor
    _check_index(directory, tensors)
    return tensors


def find_tensor(
    tensors: Mapping[str, StoredTensor], name: str, shapes: Sequence[tuple[int, ...]], dtypes: Container[str]
) -> StoredTensor:
    """Return a tensor that has one of these shapes and dtypes. Raises InvalidCheckpoint or UnsupportedModel."""
    stored = tensors.get(name)
    if stored is None:
        raise InvalidCheckpoint(f"tensor {name} is missing from the checkpoint")
    if stored.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise InvalidCheckpoint(f"tensor {name} has shape {list(stored.shape)}, but the config needs {wanted}")
    if stored.dtype not in dtypes:
        raise UnsupportedModel(f"tensor {name} has dtype {stored.dtype}, which is not supported")
    return stored


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files: `model.safetensors`, otherwise the files named by the index, sorted by name."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise InvalidCheckpoint(f"{directory} has neither {single.name} nor {index.name}; other formats are not read")
    return [directory / name for name in sorted(set(_index_map(index).values()))]


def stored_dtype(directory: Path) -> str:
    """Return the most frequent dtype of a checkpoint's tensors. Raises InvalidCheckpoint if there are none."""
    counts = Counter(tensor.dtype for tensor in read_tensors(directory).values())
    if not counts:
        raise InvalidCheckpoint(f"{directory} holds no tensors")
    return counts.most_common(1)[0][0]


def file_status(path: Path) -> os.stat_result:
    """Return the status of a regular file. Raises InvalidCheckpoint, also for pipes and devices (endless)."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InvalidCheckpoint(f"{path} does not exist") from None
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidCheckpoint(f"{path} is not a regular file")
    return status


def _read_header(path: Path) -> list[StoredTensor]:
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


def _check_index(directory: Path, tensors: dict[str, StoredTensor]) -> None:
    """Check that the index, if it is used, agrees with the files. Raises InvalidCheckpoint."""
    index = directory / "model.safetensors.index.json"
    if (directory / "model.safetensors").exists():
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
