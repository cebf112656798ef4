"""Header of a GGUF file: metadata, and the place of each tensor. No torch, and no tensor data.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from baton.engine.checkpoint.gguf.types import OTHER_TYPES, TYPES
from baton.engine.checkpoint.json_object import shown
from baton.engine.checkpoint.stored_tensor import MAX_NAME_CHARS, StoredTensor, file_status
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_ENTRIES = 1 << 20  # of metadata, and tensors
MAX_TEXT_BYTES = 1 << 26
MAX_ELEMENTS = 1 << 22  # of an array in the metadata
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensors of a file."""

    metadata: dict[str, object]  # numbers, booleans, texts, and lists of them
    tensors: list[StoredTensor]  # under the file's own names; shapes as in torch, columns last


class _Reader:
    """Position in a file's bytes; raises ValueError at their end."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self.position = 0

    def number(self, code: str) -> int | float | bool:
        """Read a number of the struct module's type `code`."""
        found: int | float | bool = struct.unpack("<" + code, self.bytes(struct.calcsize("<" + code)))[0]
        return found

    def count(self, most: int) -> int:
        """Read an unsigned number of 64 bits."""
        count = int(self.number("Q"))
        if count > most:
            raise ValueError(f"the count {count} at byte {self.position - 8} is over {most}")
        return count

    def bytes(self, count: int) -> bytes:
        """Read bytes."""
        end = self.position + count
        if end > len(self._content):
            raise ValueError(f"it ends at byte {len(self._content)}, within the header")
        found = self._content[self.position : end]
        self.position = end
        return found

    def text(self) -> str:
        """Read a text, replacing bytes that are not UTF-8, which single tokens may have."""
        return self.bytes(self.count(MAX_TEXT_BYTES)).decode("utf-8", "replace")

    def value(self, kind: int) -> object:
        """Read a metadata value."""
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self._array()
        if kind not in NUMBERS:
            raise ValueError(f"the value type {kind} at byte {self.position} is unknown")
        return self.number(NUMBERS[kind])

    def _array(self) -> list[object]:
        kind, count = int(self.number("I")), self.count(MAX_ELEMENTS)
        if kind == STRING:
            return [self.text() for _ in range(count)]
        if kind not in NUMBERS:
            raise ValueError(f"an array of value type {kind} at byte {self.position} is not supported")
        dtype = np.dtype("<" + NUMBERS[kind])
        found: list[object] = np.frombuffer(self.bytes(count * dtype.itemsize), dtype).tolist()
        return found


def read_header(path: Path) -> GgufHeader:
    """Read a file's header. Raises InvalidCheckpoint naming what is damaged, UnsupportedModel for unknown types."""
    size = file_status(path).st_size
    if size < 24:
        raise InvalidCheckpoint(f"{path} is truncated or not a GGUF file")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _parse(path, content)
    except OSError as error:
        raise InvalidCheckpoint(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, OverflowError, struct.error) as error:
        raise InvalidCheckpoint(f"{path} has a damaged header: {error}") from error


def _parse(path: Path, content: mmap.mmap) -> GgufHeader:
    reader = _Reader(content)
    if reader.bytes(4) != MAGIC:
        raise InvalidCheckpoint(f"{path} is truncated or not a GGUF file")
    if (version := int(reader.number("I"))) not in VERSIONS:
        raise UnsupportedModel(f"{path} has GGUF version {version}, which is not supported, only 2 and 3")
    num_tensors, num_values = reader.count(MAX_ENTRIES), reader.count(MAX_ENTRIES)
    metadata: dict[str, object] = {}
    for _ in range(num_values):
        key = reader.text()
        if key in metadata:
            raise ValueError(f"the key {shown(key)} is there twice")
        metadata[key] = reader.value(int(reader.number("I")))
    entries = [_entry(path, reader) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= MAX_ALIGNMENT or alignment % 8:
        raise ValueError(f"general.alignment must be a multiple of 8, not {shown(alignment)}")
    start = -(-reader.position // alignment) * alignment
    tensors = [_placed(tensor, start, alignment) for tensor in entries]
    _check(path, tensors, len(content))
    return GgufHeader(metadata, tensors)


def _entry(path: Path, reader: _Reader) -> StoredTensor:
    """Read a tensor's entry; its offset counts from the beginning of the data."""
    name = reader.text()
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise ValueError(f"the tensor name {shown(name)}")
    num_dimensions = int(reader.number("I"))
    if not 0 < num_dimensions <= MAX_DIMENSIONS:
        raise ValueError(f"tensor {name} has {num_dimensions} dimensions")
    shape = tuple(int(reader.number("Q")) for _ in range(num_dimensions))[::-1]
    if min(shape) < 1:
        raise ValueError(f"tensor {name} has the dimensions {shape[::-1]}, which must be above 0")
    kind, offset = int(reader.number("I")), int(reader.number("Q"))
    found = TYPES.get(kind)
    if found is None:
        supported = ", ".join(each.name for each in TYPES.values())
        named = OTHER_TYPES.get(kind, str(kind))
        raise UnsupportedModel(f"{path}: tensor {name} has type {named}, which is not supported, only {supported}")
    if shape[-1] % found.elements:
        raise ValueError(f"tensor {name} has {shape[-1]} columns, which blocks of {found.elements} do not divide")
    return StoredTensor(name, path, found.dtype, shape, offset, prod(shape) // found.elements * found.num_bytes)


def _placed(tensor: StoredTensor, start: int, alignment: int) -> StoredTensor:
    if tensor.offset % alignment:
        raise ValueError(f"tensor {tensor.name} begins at byte {tensor.offset}, not at a multiple of {alignment}")
    return StoredTensor(tensor.name, tensor.file, tensor.dtype, tensor.shape, start + tensor.offset, tensor.num_bytes)


def _check(path: Path, tensors: list[StoredTensor], size: int) -> None:
    names: set[str] = set()
    end = 0
    for tensor in sorted(tensors, key=lambda each: each.offset):
        if tensor.name in names:
            raise ValueError(f"tensor {tensor.name} is there twice")
        names.add(tensor.name)
        if tensor.offset < end:
            raise ValueError(f"tensor {tensor.name} overlaps the one in front of it")
        end = tensor.offset + tensor.num_bytes
        if end > size:
            raise InvalidCheckpoint(
                f"{path} has {size} bytes, but tensor {tensor.name} ends at byte {end}: it is truncated or damaged"
            )
