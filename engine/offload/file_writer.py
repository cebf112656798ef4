"""Writer of a weights file, weight by weight while a model is loaded."""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor
from xxhash import xxh3_128

from baton.engine.checkpoint.placement import WeightForm
from baton.engine.errors import EngineError
from baton.engine.offload.address_space import AddressSpace
from baton.engine.offload.layout import TENSOR_ALIGNMENT, Layout, PlacedWeight, StoredForm, Unit, whole_pages
from baton.engine.offload.weights_file import Trailer

log = logging.getLogger(__name__)

REPORT_S = 5.0  # between two lines of the log


class FileWriter:
    """Placement that writes each weight to a file when it is made, and returns it at its future address.

    Consecutive weights of one expert are a unit, as are consecutive weights of a layer that belong to none.
    """

    def __init__(
        self, path: Path, space: AddressSpace, num_bytes: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """path: a file that is created or replaced; num_bytes: of all weights, approximately. Raises EngineError."""
        self.path = path
        self._num_bytes = num_bytes
        self._clock = clock
        self._next_report_s = clock() + REPORT_S
        self._space = space
        self._units: list[Unit] = []
        self._weights: list[PlacedWeight] = []
        self._unit: Unit | None = None  # the one being written
        self._digest = xxh3_128()  # of the unit being written
        self._layer = self._end = 0
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise self._failed(error) from error

    def begin_layer(self, layer: int) -> None:
        """Begin a layer."""
        self._layer = layer

    def place(
        self, make: Callable[[], WeightForm], expert: int | None = None, names: tuple[str, ...] = ()
    ) -> WeightForm:
        """Write a weight; see Placement. Raises EngineError."""
        form = make()
        try:
            if self._unit is None or (self._unit.layer, self._unit.expert) != (self._layer, expert):
                self._close_unit()
                self._unit, self._digest = Unit(self._layer, expert, self._end, 0, ""), xxh3_128()
            stored = self._written(form)
        except OSError as error:
            raise self._failed(error) from error
        self._weights.append(PlacedWeight(self._layer, expert, names, stored))
        self._report()
        return stored.within(self._space)

    def end_layer(self) -> None:
        """Write the rest of the layer's last unit. Raises EngineError."""
        try:
            self._close_unit()
        except OSError as error:
            raise self._failed(error) from error

    def finish(self) -> None:
        """Write the layout, and wait until the disk has everything. Raises EngineError."""
        text = Layout(tuple(self._units), tuple(self._weights)).encoded()
        trailer = Trailer(self._end, len(text), xxh3_128(text).digest())
        try:
            self._file.write(text + trailer.encoded())
            self._file.flush()
            os.fsync(self._file.fileno())
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # it is read directly from now on
            self._file.close()
        except OSError as error:
            raise self._failed(error) from error

    def discard(self) -> None:
        """Close and remove the file, unless it has its final name."""
        with contextlib.suppress(OSError):  # of bytes that a full disk does not take
            self._file.close()
        self.path.unlink(missing_ok=True)

    def _report(self) -> None:
        """Log the progress every few seconds."""
        now_s = self._clock()
        if now_s < self._next_report_s:
            return
        self._next_report_s = now_s + REPORT_S
        percent = min(100, 100 * self._end // max(self._end, self._num_bytes))
        log.info("weights offload: %d%% of %.2f GB are written", percent, max(self._end, self._num_bytes) / 1e9)

    def _close_unit(self) -> None:
        if self._unit is not None:
            self._pad(whole_pages(self._end))
            num_bytes = self._end - self._unit.offset
            self._units.append(replace(self._unit, num_bytes=num_bytes, digest=self._digest.hexdigest()))
            self._unit = None

    def _written(self, form: WeightForm) -> StoredForm:
        tensors = {name: self._write(tensor) for name, tensor in form.tensors.items()}
        return StoredForm(form.kind, form.numbers, tensors, tuple(self._written(part) for part in form.parts))

    def _write(self, tensor: Tensor) -> tuple[str, tuple[int, ...], int]:
        self._pad(-(-self._end // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT)
        offset = self._end
        self._append(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), offset

    def _pad(self, end: int) -> None:
        self._append(memoryview(bytes(end - self._end)))

    def _append(self, part: memoryview) -> None:
        self._file.write(part)
        self._digest.update(part)
        self._end += len(part)

    def _failed(self, error: OSError) -> EngineError:
        done = f" after {self._end / 1e9:.2f} GB" if self._end else ""
        return EngineError(
            f"weights_offload_dir {self.path.parent} cannot hold the model's weights: {error.strerror}{done}; set a "
            "directory that can be written to, on a disk with enough space"
        )


class FileContents:
    """Placement of weights that a file has already: nothing is made."""

    def __init__(self, layout: Layout, space: AddressSpace) -> None:
        self._weights = iter(layout.weights)
        self._space = space
        self._layer = 0

    def begin_layer(self, layer: int) -> None:
        """Begin a layer."""
        self._layer = layer

    def place(
        self, make: Callable[[], WeightForm], expert: int | None = None, names: tuple[str, ...] = ()
    ) -> WeightForm:
        """Return the next weight; see Placement. Raises EngineError if the file has another one there."""
        found = next(self._weights, None)
        if found is None or (found.layer, found.expert, found.names) != (self._layer, expert, names):
            stored = "nothing" if found is None else f"{', '.join(found.names)} of layer {found.layer}"
            raise EngineError(
                f"the weights file has {stored} where {', '.join(names)} of layer {self._layer} is wanted: remove it"
            )
        return found.form.within(self._space)

    def end_layer(self) -> None:
        """End the layer."""
