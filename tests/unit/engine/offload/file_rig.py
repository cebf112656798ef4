"""A file of small weights, whose contents are their numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.checkpoint.placement import WeightForm
from baton.engine.offload.address_space import AddressSpace
from baton.engine.offload.file_writer import FileContents, FileWriter
from baton.engine.offload.layout import Unit
from baton.engine.offload.unit_reads import UnitReader
from baton.engine.offload.weights_file import WeightsFile

ITEMS = 3000  # two pages of int64 and a part


def numbered(number: int) -> WeightForm:
    return WeightForm(kind="plain", tensors={"weight": torch.full((3, ITEMS // 3), number)})


def never() -> WeightForm:
    raise AssertionError("the file has it")


@dataclass
class FileRig:
    """Weights by (layer, expert), and the reader that brings them into memory."""

    reader: UnitReader
    weights: dict[tuple[int, int | None], Tensor]

    @property
    def units(self) -> tuple[Unit, ...]:
        return self.reader.file.layout.units

    def has(self, layer: int, expert: int | None = None) -> bool:
        """Whether a weight is in memory: all of it, with its number."""
        return bool((self.weights[layer, expert] == number_of(layer, expert)).all())

    @property
    def resident(self) -> set[tuple[int, int | None]]:
        """The weights in memory; the others' bytes are zeros."""
        found = {key for key in self.weights if self.has(*key)}
        assert all(not self.weights[key].any() for key in self.weights.keys() - found)
        return found


def number_of(layer: int, expert: int | None) -> int:
    return 1 + 100 * layer + (50 if expert is None else expert)


@contextmanager
def written(path: Path, num_layers: int, num_experts: int = 0) -> Iterator[FileRig]:
    """Write a file, and open it in another address space."""
    writer = FileWriter(path, AddressSpace(1 << 24))
    keys = [(layer, expert) for layer in range(num_layers) for expert in (None, *range(num_experts))]
    for layer in range(num_layers):
        writer.begin_layer(layer)
        for expert in (None, *range(num_experts)):
            form = numbered(number_of(layer, expert))
            assert writer.place(lambda form=form: form, expert).tensors["weight"].shape == (3, ITEMS // 3)
        writer.end_layer()
    writer.finish()
    file = WeightsFile(path)
    assert [file.digest_of(unit) for unit in file.layout.units] == [unit.digest for unit in file.layout.units]
    space = AddressSpace(file.layout.num_bytes)
    contents = FileContents(file.layout, space)
    weights = {}
    for layer, expert in keys:
        contents.begin_layer(layer)
        weights[layer, expert] = contents.place(never, expert).tensors["weight"]
    reader = UnitReader(file, space)
    try:
        yield FileRig(reader, weights)
    finally:
        reader.close()
