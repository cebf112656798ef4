"""Layout of a weights file: units that are read at once, and the weights in them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from baton.engine.checkpoint.placement import WeightForm
from baton.engine.offload.address_space import PAGE, AddressSpace

TENSOR_ALIGNMENT = 64
CHUNK_BYTES = 8 << 20  # of a large unit that is read at once; whole pages
DTYPES = {
    str(each).removeprefix("torch."): each
    for each in (
        *(torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}


@dataclass(frozen=True, slots=True)
class Unit:
    """Weights that a step needs together: those of one expert, or all others of a layer."""

    layer: int
    expert: int | None
    offset: int  # in the file, a multiple of the page size, as the length is
    num_bytes: int
    digest: str  # xxh3_128 of its bytes

    @property
    def chunks(self) -> list[tuple[int, int]]:
        """Offset and length of the parts that are read at once."""
        end = self.offset + self.num_bytes
        return [(start, min(CHUNK_BYTES, end - start)) for start in range(self.offset, end, CHUNK_BYTES)]


@dataclass(frozen=True, slots=True)
class StoredForm:
    """Form of a weight whose tensors are in a file."""

    kind: str
    numbers: Mapping[str, int]
    tensors: Mapping[str, tuple[str, tuple[int, ...], int]]  # dtype, shape and offset in the file
    parts: tuple["StoredForm", ...] = ()

    def within(self, space: AddressSpace) -> WeightForm:
        """Return the form with its tensors at their addresses."""
        tensors = {
            name: space.tensor(DTYPES[dtype], tuple(shape), offset)
            for name, (dtype, shape, offset) in self.tensors.items()
        }
        parts = tuple(part.within(space) for part in self.parts)
        return WeightForm(kind=self.kind, tensors=tensors, numbers=self.numbers, parts=parts)

    @classmethod
    def parse(cls, found: Mapping[str, Any]) -> "StoredForm":
        """Parse what `asdict` and JSON make of a form."""
        parts = tuple(cls.parse(part) for part in found["parts"])
        tensors = {name: (dtype, tuple(shape), offset) for name, (dtype, shape, offset) in found["tensors"].items()}
        return cls(found["kind"], found["numbers"], tensors, parts)


@dataclass(frozen=True, slots=True)
class PlacedWeight:
    """A weight of a layer, in the order in which loading asks for them."""

    layer: int
    expert: int | None
    names: tuple[str, ...]  # of the checkpoint's tensors that it was made of
    form: StoredForm


@dataclass(frozen=True, slots=True)
class Layout:
    """Contents of a weights file."""

    units: tuple[Unit, ...]
    weights: tuple[PlacedWeight, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all units, with the gaps that alignment leaves."""
        return max((unit.offset + unit.num_bytes for unit in self.units), default=0)

    def encoded(self) -> bytes:
        """Return the layout as JSON."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def parse(cls, text: bytes) -> "Layout":
        """Parse `encoded`. Raises ValueError, KeyError or TypeError if it is something else."""
        found = json.loads(text)
        weights = (
            PlacedWeight(each["layer"], each["expert"], tuple(each["names"]), StoredForm.parse(each["form"]))
            for each in found["weights"]
        )
        return cls(tuple(Unit(**unit) for unit in found["units"]), tuple(weights))


def whole_pages(num_bytes: int) -> int:
    """Round up to whole pages."""
    return -(-num_bytes // PAGE) * PAGE


def total_bytes(units: Iterable[Unit]) -> int:
    """Return the bytes of some units."""
    return sum(unit.num_bytes for unit in units)
