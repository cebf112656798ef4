"""A checkpoint's tensors, each read once, directly from the mapped files."""

import ctypes
import logging
import math
import mmap
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.checkpoint.file_hashes import FileState
from baton.engine.checkpoint.gguf.types import PACKED
from baton.engine.checkpoint.packed.lookup import PackedLookup, module_of
from baton.engine.checkpoint.packed.scheme import NOT_PACKED
from baton.engine.checkpoint.packed.stored_layout import PackedLayout, PackedMatrix, Wanted
from baton.engine.checkpoint.placement import Placement
from baton.engine.checkpoint.stored_matrix import WHOLE, Part, StoredMatrix, part_of_scales, scale_shapes
from baton.engine.checkpoint.stored_quantization import SCALE_SUFFIXES, StoredQuantization
from baton.engine.checkpoint.stored_tensor import StoredTensor, find_tensor
from baton.engine.checkpoint.tensor_index import read_tensors
from baton.engine.checkpoint.tensor_prefixes import Prefixes, under_model
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel

log = logging.getLogger(__name__)

_trim_heap = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
RELEASE_BYTES = 8 << 20  # bytes read between releases of the mapped pages
TRIM_BYTES = 32 << 20  # bytes read between trims of the heap, which cause page faults later

FP8 = "float8_e4m3fn"
STORED = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16, FP8: torch.float8_e4m3fn}
BYTES = ("uint8",)
INTEGERS = {"int32": torch.int32, "int64": torch.int64, "int8": torch.int8, "uint8": torch.uint8}  # in packed matrices

Stored = StoredMatrix | PackedMatrix


class Weights:
    """Tensors of a checkpoint while it is loaded. Mapped pages are released regularly, so they never add up to a copy.

    Only the wanted part of a tensor is copied out of the mapped file: unwanted rows are not read at all, unwanted
    columns only if they share a page with wanted ones.
    """

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype,
        device: torch.device,
        on_progress: Callable[[float], None] | None = None,
        quantization: str | None = None,
        stored_quantization: StoredQuantization | None = None,
        prefixes: Prefixes = (),
        placement: Placement | None = None,
    ) -> None:
        """prefixes: of names that the model has under others; see `under_model`.

        placement: of the layers' weights; None: they stay where they are made.
        """
        self.placement: Placement | None = None  # within a layer
        self._layer_placement = placement
        self.dtype = dtype
        self.device = device
        self.quantization = quantization  # as in EngineConfig
        self.stored_quantization = stored_quantization
        self._tensors = under_model(read_tensors(directory), prefixes)
        packed = stored_quantization.packed if stored_quantization is not None else NOT_PACKED
        self._packed = PackedLookup(self._tensors, packed)
        self._total_bytes = max(sum(tensor.num_bytes for tensor in self._tensors.values()), 1)
        self._taken: set[str] = set()
        self._peeked: dict[str, None] = {}  # names, since the last call of `take_peeked`
        self._taken_bytes = 0
        self._read_bytes = 0
        self._mapped_bytes = 0  # read since the last release of mapped pages
        self._untrimmed_bytes = 0  # read since the last trim of the heap
        self._is_loaded = False
        self._started_s = time.monotonic()
        self._maps: dict[Path, mmap.mmap] = {}
        self._states: dict[Path, FileState] = {}  # state of each file when it was mapped
        self._on_progress = on_progress
        self._dequantised_for: set[str] = set()  # reasons already logged

    def __contains__(self, name: str) -> bool:
        return name in self._tensors or name in self._packed

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        """Place the weights that are read in the block as those of a layer."""
        placement = self._layer_placement
        if placement is None:
            yield
            return
        placement.begin_layer(index)
        self.placement = placement
        self.take_peeked()
        yield
        self.placement = None
        placement.end_layer()

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None, part: Part = WHOLE) -> Tensor:
        """Return a copy of a tensor of this shape, or of a part of it, on the model's device.

        Default dtype: the model's. Raises InvalidCheckpoint or UnsupportedModel, like `peek`.
        """
        view = self.peek(name, *shape, part=part)
        target = torch.empty(view.shape, dtype=dtype or self.dtype, device=self.device)
        view.copy_to(target)
        self._peeked.pop(name, None)
        return target

    def take_peeked(self) -> tuple[str, ...]:
        """Return the names of the tensors that were viewed since the last call, and were not copied."""
        names, self._peeked = tuple(self._peeked), {}
        return names

    def peek(self, name: str, *shape: int, part: Part = WHOLE) -> Stored:
        """Return a read-only view of a tensor of this shape, or of a part of it, as stored; it counts as taken.

        Valid until `close`. Raises InvalidCheckpoint if the tensor is missing or has another shape, UnsupportedModel
        for an unsupported dtype, and for a part that a packed matrix cannot be read in.
        """
        if (layout := self._packed.layout(name)) is not None:
            return self._peek_packed(name, layout, shape, part)
        stored = self._find(name, shape)
        view = self._viewed(stored, part)
        if stored.dtype != FP8:
            return StoredMatrix(view)
        block, found = self._block, self._find_scales(stored)
        self._count(found)
        return StoredMatrix(view, part_of_scales(self._view(found), shape, block, part))

    def take_integers(self, name: str, *shape: int) -> Tensor:
        """Return a copy of a tensor of integers of this shape, as int64 on the model's device; raises like `peek`."""
        return self._viewed(find_tensor(self._tensors, name, (shape,), INTEGERS), WHOLE).to(self.device, torch.int64)

    def peek_bytes(self, name: str, *shape: int, part: Part = WHOLE) -> Tensor:
        """Return a read-only view of a tensor of bytes, or of a part of it, like `peek`."""
        return self._viewed(find_tensor(self._tensors, name, (shape,), BYTES), part)

    def expect_bytes(self, name: str, *shape: int) -> None:
        """Check a tensor of bytes that is read later, like `expect`."""
        self._expect([find_tensor(self._tensors, name, (shape,), BYTES)])

    def expect(self, name: str, *shape: int) -> None:
        """Check a tensor that is read later, or on another rank: it counts as taken, but not for progress."""
        if (layout := self._packed.layout(name)) is not None:
            tensors = tuple(self._packed.find(layout, Wanted.of(module_of(name), shape, WHOLE)).values())
        else:
            tensors = self._with_scales(self._find(name, shape))
        self._expect(tensors)

    def note_dequantised(self, why: str) -> None:
        """Log that FP8 matrices are dequantised instead of used directly; each reason once."""
        if why not in self._dequantised_for:
            self._dequantised_for.add(why)
            log.info("weights in FP8 are dequantised to %s: %s", str(self.dtype).removeprefix("torch."), why)

    def note_dequantised_in_products(self) -> None:
        """Warn once that packed matrices are dequantised each time they are used."""
        if "packed" not in self._dequantised_for:
            self._dequantised_for.add("packed")
            log.warning(
                "packed weights have no fast products here: they are dequantised to %s on %s at each use, which takes "
                "longer than products of plain weights",
                str(self.dtype).removeprefix("torch."),
                self.device,
            )

    def finish(self, ignored: Callable[[str], bool]) -> None:
        """End loading. Raises InvalidCheckpoint naming tensors that were neither taken nor `ignored`."""
        self._on_progress = None
        self._is_loaded = True  # later reads are not part of loading
        self._trim()
        stored = self.stored_quantization
        left = sorted(name for name in self._tensors.keys() - self._taken if not ignored(name))
        left = [name for name in left if stored is None or not stored.is_unused(name)]
        left = [name for name in left if not self._is_empty_bias(name)]
        if left:
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise InvalidCheckpoint(f"unexpected tensors that the config has no use for: {', '.join(left[:5])}{more}")

    def hold(self) -> None:
        """Map every file now, so that later reads see the same files even if they are replaced."""
        for file in {stored.file for stored in self._tensors.values()}:
            self._map(file)

    def check_unchanged(self, names: Iterable[str]) -> None:
        """Raise InvalidCheckpoint if a mapped file with one of these tensors has been written to.

        A file that was replaced or removed is still mapped as it was. Only the modification time is compared: the
        inode's change time also changes without a write.
        """
        stored: list[StoredTensor] = []
        for name in names:
            for each in self._packed.names(name):
                tensor = self._tensors[each]  # NVFP4 has packed scales in FP8, which have no scales of their own
                stored += self._with_scales(tensor) if each == name else (tensor,)
        for path in {each.file for each in stored}.intersection(self._states):
            before = self._states[path]
            try:
                now = FileState.of(path)
            except InvalidCheckpoint:
                continue
            is_same = (now.device, now.inode) == (before.device, before.inode)
            if is_same and (now.num_bytes, now.modified_ns) != (before.num_bytes, before.modified_ns):
                raise InvalidCheckpoint(f"{path} was written to after it was loaded; restart to load it again")

    def close(self) -> None:
        """Drop the mappings; a file is unmapped once its last view is freed."""
        log.info("read %.2f MB of weights in %.1f s", self._read_bytes / 1e6, time.monotonic() - self._started_s)
        self._maps.clear()
        self._states.clear()

    def _peek_packed(self, name: str, layout: PackedLayout, shape: tuple[int, ...], part: Part) -> PackedMatrix:
        wanted = Wanted.of(module_of(name), shape, part)
        found = self._packed.find(layout, wanted)
        share = math.prod(wanted.shape) / max(math.prod(shape), 1)
        num_bytes = round(share * sum(each.num_bytes for each in found.values()))
        self._read_bytes += num_bytes
        self._release(num_bytes)
        for each in found.values():
            self._count(each)
        return PackedMatrix(layout, {suffix: self._view(each) for suffix, each in found.items()}, wanted)

    def _expect(self, tensors: Iterable[StoredTensor]) -> None:
        for each in tensors:
            if each.name not in self._taken:
                self._taken.add(each.name)
                self._total_bytes = max(self._total_bytes - each.num_bytes, 1)

    def _viewed(self, stored: StoredTensor, part: Part) -> Tensor:
        """Return a view of a part of a tensor, which counts as taken."""
        view = self._view(stored)[part]
        self._read_bytes += view.nbytes
        self._release(view.nbytes)
        self._count(stored)
        return view

    def _is_empty_bias(self, name: str) -> bool:
        """Return whether a tensor is a bias of zeros, which GPTQ's tools add to packed modules that have none."""
        stored = self._tensors[name]
        return self._packed.is_bias_of_packed(name) and stored.dtype in STORED and not self._view(stored).any()

    def _find(self, name: str, *shapes: tuple[int, ...]) -> StoredTensor:
        """Return a tensor that has one of these shapes. Raises InvalidCheckpoint or UnsupportedModel."""
        stored = find_tensor(self._tensors, name, shapes, STORED)
        if stored.dtype == FP8 and self.stored_quantization is None:
            raise UnsupportedModel(f"tensor {name} is in FP8, but the config has no quantization_config")
        return stored

    def _find_scales(self, stored: StoredTensor) -> StoredTensor:
        """Return the scales of an FP8 tensor. Raises InvalidCheckpoint or UnsupportedModel."""
        if len(stored.shape) < 2:
            raise InvalidCheckpoint(f"tensor {stored.name} is in FP8, but is not a matrix")
        names = [stored.name + suffix for suffix in SCALE_SUFFIXES]
        name = next((name for name in names if name in self._tensors), None)
        if name is None:
            raise InvalidCheckpoint(f"tensor {stored.name} is in FP8, but there is no {' or '.join(names)}")
        scales = self._find(name, *scale_shapes(stored.shape, self._block))
        if scales.dtype == FP8:
            raise UnsupportedModel(f"tensor {name} has dtype {FP8}, which is not supported for scales")
        return scales

    def _with_scales(self, stored: StoredTensor) -> tuple[StoredTensor, ...]:
        """Return a tensor and, if it is in FP8, its scales."""
        return (stored, self._find_scales(stored)) if stored.dtype == FP8 else (stored,)

    @property
    def _block(self) -> tuple[int, int] | None:
        return self.stored_quantization.block if self.stored_quantization is not None else None

    def _release(self, num_bytes: int) -> None:
        """Release the mapped pages from time to time, since their contents are in the model; views stay valid.

        During loading, also return freed heap memory to the system, less often.
        """
        self._mapped_bytes += num_bytes
        if self._mapped_bytes > RELEASE_BYTES:
            self._mapped_bytes = num_bytes  # the view just created is read after this
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)
        self._untrimmed_bytes += num_bytes
        if self._untrimmed_bytes > TRIM_BYTES and not self._is_loaded:
            self._trim()

    def _trim(self) -> None:
        self._untrimmed_bytes = 0
        if _trim_heap is not None:
            _trim_heap(0)

    def _count(self, stored: StoredTensor) -> None:
        if stored.name not in self._taken:  # a tensor may be taken in several parts
            self._taken.add(stored.name)
            self._taken_bytes += stored.num_bytes
        self._peeked[stored.name] = None
        if self._on_progress is not None:
            self._on_progress(min(self._taken_bytes / self._total_bytes, 1.0))

    def _view(self, stored: StoredTensor) -> Tensor:
        dtype = torch.uint8 if stored.dtype.startswith(PACKED) else (STORED | INTEGERS)[stored.dtype]
        if stored.num_bytes == 0:
            return torch.empty(stored.shape, dtype=dtype)
        mapped = self._map(stored.file)
        if stored.offset + stored.num_bytes > len(mapped):
            raise InvalidCheckpoint(f"{stored.file} became shorter while it was read")
        count = stored.num_bytes // dtype.itemsize
        found = torch.frombuffer(mapped, dtype=dtype, count=count, offset=stored.offset)
        return found.view(*stored.shape[:-1], -1) if stored.dtype.startswith(PACKED) else found.view(stored.shape)

    def _map(self, path: Path) -> mmap.mmap:
        mapped = self._maps.get(path)
        if mapped is None:
            with path.open("rb") as file:
                # Copy-on-write, because torch warns about read-only buffers; nothing ever writes to it.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
                self._states[path] = FileState.of_stat(os.fstat(file.fileno()))
            self._maps[path] = mapped
        return mapped
