"""The safetensors files of a checkpoint directory: which tensors are where. No torch, and no tensor data.

Format: https://github.com/huggingface/safetensors#format (8 bytes of length, a JSON header, the tensors' bytes).
"""

import json
import os
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from baton.engine.checkpoint.json_object import JsonObject, shown
from baton.engine.errors import InvalidCheckpoint

MAX_HEADER_BYTES = 100 << 20  # what the format allows
MAX_NAME_CHARS = 512
MAX_DIMENSIONS = 64
MAX_COUNT = (1 << 63) - 1
DTYPES = {"BF16": "bfloat16", "F32": "float32", "F16": "float16", "F8_E4M3": "float8_e4m3fn"}
ITEM_BYTES = {"BF16": 2, "F32": 4, "F16": 2, "F8_E4M3": 1}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor's bytes lie."""

    name: str
    file: Path
    dtype: str  # bfloat16, float32, float16, float8_e4m3fn, or the format's own name of another
    shape: tuple[int, ...]
    offset: int  # of the first byte in the file
    num_bytes: int


def read_tensors(directory: Path) -> dict[str, StoredTensor]:
    """All tensors of a checkpoint by name; InvalidCheckpoint names what is missing, cut short or there twice."""
    tensors: dict[str, StoredTensor] = {}
    for file in weight_files(directory):
        for tensor in _read_header(file):
            if tensor.name in tensors:
                raise InvalidCheckpoint(f"{tensor.name} is in {tensors[tensor.name].file.name} and in {file.name}")
            tensors[tensor.name] = tensor
    _check_index(directory, tensors)
    return tensors


def weight_files(directory: Path) -> list[Path]:
    """The files with weights: `model.safetensors`, else those that the index names, in order of their names."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.exists():
        return [single]
    if not index.exists():
        raise InvalidCheckpoint(f"{directory} has neither {single.name} nor {index.name}; other formats are not read")
    return [directory / name for name in sorted(set(_index_map(index).values()))]


def stored_dtype(directory: Path) -> str:
    """The dtype of most of a checkpoint's tensors."""
    counts = Counter(tensor.dtype for tensor in read_tensors(directory).values())
    if not counts:
        raise InvalidCheckpoint(f"{directory} holds no tensors")
    return counts.most_common(1)[0][0]


def file_status(path: Path) -> os.stat_result:
    """A file's status; a pipe or a device is none, and reading it might never end. Raises InvalidCheckpoint."""
    try:
        status = path.stat()
    except FileNotFoundError:
        raise InvalidCheckpoint(f"{path} does not exist") from None
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise InvalidCheckpoint(f"{path} is no file")
    return status


def _read_header(path: Path) -> list[StoredTensor]:
    size = file_status(path).st_size
    with _open(path) as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise InvalidCheckpoint(f"{path} is cut short or no safetensors file")
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
                f"{path} has a damaged header: {tensor.name} begins at byte {tensor.offset}, where {end} comes next"
            )
        end += tensor.num_bytes
    if end != size:
        raise InvalidCheckpoint(f"{path} has {size} bytes where its header says {end}: it is cut short or damaged")
    return tensors


def _entry(path: Path, name: str, entry: dict[str, object], data_start: int) -> StoredTensor:
    """One entry of a header. Raises KeyError, TypeError or ValueError for what is none."""
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
    """A list of sizes or offsets. Raises TypeError or ValueError."""
    if not isinstance(values, list) or not all(type(value) is int for value in values):
        raise TypeError(f"the shape or offsets of {name}")
    if len(values) > MAX_DIMENSIONS or not all(0 <= value <= MAX_COUNT for value in values):
        raise ValueError(f"the sizes or offsets of {name}")
    return tuple(values)


def _check_index(directory: Path, tensors: dict[str, StoredTensor]) -> None:
    """The index and the files must agree where the index is used."""
    index = directory / "model.safetensors.index.json"
    if (directory / "model.safetensors").exists():
        return
    for name, file in _index_map(index).items():
        if name not in tensors or tensors[name].file.name != file:
            raise InvalidCheckpoint(f"{name} is not in {file}, where {index.name} has it")


def _index_map(index: Path) -> dict[str, str]:
    entries = JsonObject.read(index).inner("weight_map").values
    # A file is named, never a path: an index cannot reach out of its directory.
    files = {name: file for name, file in entries.items() if isinstance(file, str) and Path(file).name == file}
    if not files or len(files) != len(entries) or not all(map(_is_name, [*files, *set(files.values())])):
        raise InvalidCheckpoint(f"{index} has no proper weight_map")
    return files


def _is_name(text: str) -> bool:
    """Whether a tensor, dtype or file may be called so: its name stands in logs and errors."""
    return 0 < len(text) <= MAX_NAME_CHARS and text.isprintable() and text != ".."


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
