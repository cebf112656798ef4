"""The safetensors files of a checkpoint directory: which tensors are where. No torch, and no tensor data but samples.

Format: https://github.com/huggingface/safetensors#format (8 bytes of length, a JSON header, the tensors' bytes).
"""

import json
from collections import Counter
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from engine.errors import InvalidCheckpoint
from engine.json_object import JsonObject

MAX_HEADER_BYTES = 100 << 20  # what the format allows
DTYPES = {"BF16": "bfloat16", "F32": "float32", "F16": "float16"}
ITEM_BYTES = {"BF16": 2, "F32": 4, "F16": 2}
SAMPLE_BYTES = 4096
NUM_SAMPLES = 256  # of a file


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a tensor's bytes lie."""

    name: str
    file: Path
    dtype: str  # bfloat16, float32, float16, or the format's own name of another
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


def weights_revision(directory: Path) -> str:
    """A fingerprint of the weights, equal wherever the files are equal, and quick for huge ones.

    It covers names, sizes and headers in full, and of the data evenly spaced pages: all of a file up to 1 MiB.
    """
    digest = blake2b(digest_size=16)
    for path in weight_files(directory):
        size = _size(path)
        digest.update(f"{path.name}:{size}:".encode())
        with path.open("rb") as file:
            data_start = 8 + int.from_bytes(file.read(8), "little")
            file.seek(0)
            digest.update(file.read(min(data_start, MAX_HEADER_BYTES)))
            num_pages = -(-(size - data_start) // SAMPLE_BYTES)
            for sample in range(min(NUM_SAMPLES, num_pages)):
                file.seek(data_start + sample * num_pages // min(NUM_SAMPLES, num_pages) * SAMPLE_BYTES)
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()


def _read_header(path: Path) -> list[StoredTensor]:
    size = _size(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
            raise InvalidCheckpoint(f"{path} is cut short or no safetensors file")
        try:
            header = json.loads(file.read(length))
            tensors = [
                _entry(path, name, entry, 8 + length) for name, entry in header.items() if name != "__metadata__"
            ]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidCheckpoint(f"{path} has a damaged header: {error!r}") from error
    end = max((tensor.offset + tensor.num_bytes for tensor in tensors), default=8 + length)
    if end != size:
        raise InvalidCheckpoint(f"{path} has {size} bytes where its header says {end}: it is cut short or damaged")
    return tensors


def _entry(path: Path, name: str, entry: dict[str, object], data_start: int) -> StoredTensor:
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (isinstance(dtype, str) and isinstance(shape, list) and isinstance(offsets, list)):
        raise TypeError(f"entry of {name}")
    start, end = int(offsets[0]), int(offsets[1])
    sizes = tuple(int(size) for size in shape)
    num_elements = 1
    for dimension in sizes:
        num_elements *= dimension
    if start < 0 or (dtype in ITEM_BYTES and end - start != num_elements * ITEM_BYTES[dtype]):
        raise ValueError(f"offsets of {name}")
    return StoredTensor(name, path, DTYPES.get(dtype, dtype), sizes, data_start + start, end - start)


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
    names = {name: file for name, file in entries.items() if isinstance(file, str) and "/" not in file}
    if not names or len(names) != len(entries):
        raise InvalidCheckpoint(f"{index} has no proper weight_map")
    return names


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise InvalidCheckpoint(f"{path} does not exist") from None
