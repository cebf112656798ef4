"""Hands out a checkpoint's tensors, each once, straight from the mapped files."""

import logging
import mmap
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint import StoredTensor, read_tensors
from engine.checkpoint import weights_revision as weights_revision
from engine.errors import InvalidCheckpoint, UnsupportedModel

log = logging.getLogger(__name__)

# What is wanted of a tensor, as an index of its dimensions; () is all of it. Only that is copied out of the mapped
# file: of rows that are not wanted nothing is read, of columns what lies on other pages.
Part = tuple[int | slice, ...]
WHOLE: Part = ()

RELEASE_BYTES = 8 << 20  # read between two times that the mapped pages are given back

STORED = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


class Weights:
    """The tensors of a checkpoint on their way into a model. The mapped pages are never a second copy of it."""

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype,
        device: torch.device,
        on_progress: Callable[[float], None] | None = None,
        quantization: str | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.quantization = quantization  # of what products are made with, as EngineConfig has it
        self._tensors = read_tensors(directory)
        self._total_bytes = max(sum(tensor.num_bytes for tensor in self._tensors.values()), 1)
        self._taken: set[str] = set()
        self._taken_bytes = 0
        self._read_bytes = 0
        self._mapped_bytes = 0  # read since their pages were given back
        self._started_s = time.monotonic()
        self._maps: dict[Path, mmap.mmap] = {}
        self._on_progress = on_progress

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None, part: Part = WHOLE) -> Tensor:
        """A tensor of the model's own, or a part of it, in its dtype and on its device unless told otherwise."""
        view = self.peek(name, *shape, part=part)
        return view.to(device=self.device, dtype=dtype or self.dtype, copy=True, memory_format=torch.contiguous_format)

    def peek(self, name: str, *shape: int, part: Part = WHOLE) -> Tensor:
        """A read-only view of a tensor of this shape, or of a part of it, as it is stored; it counts as taken.

        Valid until `close`.
        """
        stored = self._find(name, shape)
        view = self._view(stored)[part]
        self._read_bytes += view.nbytes
        self._release(view.nbytes)
        self._count(stored)
        return view

    def expect(self, name: str, *shape: int) -> None:
        """Makes sure of a tensor that is read later, or by somebody else: it counts as taken, and not as progress."""
        stored = self._find(name, shape)
        if name not in self._taken:
            self._taken.add(name)
            self._total_bytes = max(self._total_bytes - stored.num_bytes, 1)

    def finish(self, ignored: Callable[[str], bool]) -> None:
        """Every tensor must have been taken, or be one that `ignored` knows; the error names the others."""
        self._on_progress = None  # what is read from now on is not loading
        left = sorted(name for name in self._tensors.keys() - self._taken if not ignored(name))
        if left:
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise InvalidCheckpoint(f"tensors that the config does not explain: {', '.join(left[:5])}{more}")

    def hold(self) -> None:
        """Maps every file, so that what is read later is what is there now, whatever is put in its place."""
        for file in {stored.file for stored in self._tensors.values()}:
            self._map(file)

    def close(self) -> None:
        """Unmaps the files as soon as the last view of them is gone."""
        log.info("%.2f MB of weights read in %.1f s", self._read_bytes / 1e6, time.monotonic() - self._started_s)
        self._maps.clear()

    def _find(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        stored = self._tensors.get(name)
        if stored is None:
            raise InvalidCheckpoint(f"tensor {name} is missing from the checkpoint")
        if stored.shape != shape:
            raise InvalidCheckpoint(f"tensor {name} has shape {list(stored.shape)}, the config asks for {list(shape)}")
        if stored.dtype not in STORED:
            raise UnsupportedModel(f"tensor {name} has dtype {stored.dtype}, which is not supported")
        return stored

    def _release(self, num_bytes: int) -> None:
        """Gives the mapped pages back now and then: what was read is in the model. A view of them stays good."""
        self._mapped_bytes += num_bytes
        if self._mapped_bytes > RELEASE_BYTES:
            self._mapped_bytes = num_bytes  # which are read next
            for mapped in self._maps.values():
                mapped.madvise(mmap.MADV_DONTNEED)

    def _count(self, stored: StoredTensor) -> None:
        if stored.name not in self._taken:  # a tensor may be taken part by part
            self._taken.add(stored.name)
            self._taken_bytes += stored.num_bytes
        if self._on_progress is not None:
            self._on_progress(min(self._taken_bytes / self._total_bytes, 1.0))

    def _view(self, stored: StoredTensor) -> Tensor:
        dtype = STORED[stored.dtype]
        if stored.num_bytes == 0:
            return torch.empty(stored.shape, dtype=dtype)
        mapped = self._map(stored.file)
        if stored.offset + stored.num_bytes > len(mapped):
            raise InvalidCheckpoint(f"{stored.file} became shorter while it was read")
        count = stored.num_bytes // dtype.itemsize
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=stored.offset).view(stored.shape)

    def _map(self, path: Path) -> mmap.mmap:
        mapped = self._maps.get(path)
        if mapped is None:
            with path.open("rb") as file:
                # Copy-on-write, because torch warns of buffers it cannot write to; nothing ever writes.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._maps[path] = mapped
        return mapped


def stack(
    weights: Weights, names: Sequence[str], sizes: Iterable[int], *inner: int, wanted: Iterable[Part] | None = None
) -> Tensor:
    """Tensors of shape [size, *inner], or the wanted part of each, one after another in one of the model's own."""
    # All of them are looked at first: no memory is taken for what a wrong config makes of their sizes.
    each = zip(names, sizes, wanted or [WHOLE] * len(names), strict=True)
    return join(weights, [weights.peek(name, size, *inner, part=part) for name, size, part in each])


def join(weights: Weights, parts: Sequence[Tensor]) -> Tensor:
    """Stored tensors one after another in one of the model's own, without a copy of each in between."""
    shape = (sum(map(len, parts)), *parts[0].shape[1:])
    target = torch.empty(shape, dtype=weights.dtype, device=weights.device)
    start = 0
    for part in parts:
        target[start : start + len(part)].copy_(part)
        start += len(part)
    return target
