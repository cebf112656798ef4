"""Hands out a checkpoint's tensors, each once, straight from the mapped files."""

import logging
import mmap
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from engine.checkpoint import StoredTensor, read_tensors
from engine.checkpoint import weights_revision as weights_revision
from engine.errors import InvalidCheckpoint, UnsupportedModel

log = logging.getLogger(__name__)

STORED = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float16": torch.float16}


class Weights:
    """The tensors of a checkpoint on their way into a model. The mapped pages are never a second copy of it."""

    def __init__(
        self,
        directory: Path,
        dtype: torch.dtype,
        device: torch.device,
        on_progress: Callable[[float], None] | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._tensors = read_tensors(directory)
        self._total_bytes = max(sum(tensor.num_bytes for tensor in self._tensors.values()), 1)
        self._taken: set[str] = set()
        self._taken_bytes = 0
        self._maps: dict[Path, mmap.mmap] = {}
        self._on_progress = on_progress

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """A tensor of the model's own, in its dtype and on its device unless told otherwise."""
        return self.peek(name, *shape).to(device=self.device, dtype=dtype or self.dtype, copy=True)

    def peek(self, name: str, *shape: int) -> Tensor:
        """A read-only view of a tensor as it is stored; it counts as taken. Valid until `close`."""
        stored = self._find(name, shape)
        self._count(stored)
        return self._view(stored)

    def expect(self, name: str, *shape: int) -> None:
        """Makes sure of a tensor that is read later, or by somebody else: it counts as taken, and not as progress."""
        stored = self._find(name, shape)
        if name not in self._taken:
            self._taken.add(name)
            self._total_bytes = max(self._total_bytes - stored.num_bytes, 1)

    def finish(self, ignored: Callable[[str], bool]) -> None:
        """Every tensor must have been taken, or be one that `ignored` knows; the error names the others."""
        left = sorted(name for name in self._tensors.keys() - self._taken if not ignored(name))
        if left:
            more = f" and {len(left) - 5} more" if len(left) > 5 else ""
            raise InvalidCheckpoint(f"tensors that the config does not explain: {', '.join(left[:5])}{more}")

    def close(self) -> None:
        """Unmaps the files as soon as the last view of them is gone."""
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

    def _count(self, stored: StoredTensor) -> None:
        self._taken.add(stored.name)
        self._taken_bytes += stored.num_bytes
        if self._on_progress is not None:
            self._on_progress(min(self._taken_bytes / self._total_bytes, 1.0))

    def _view(self, stored: StoredTensor) -> Tensor:
        dtype = STORED[stored.dtype]
        if stored.num_bytes == 0:
            return torch.empty(stored.shape, dtype=dtype)
        mapped = self._maps.get(stored.file)
        if mapped is None:
            with stored.file.open("rb") as file:
                # Copy-on-write, because torch warns of buffers it cannot write to; nothing ever writes.
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            self._maps[stored.file] = mapped
        if stored.offset + stored.num_bytes > len(mapped):
            raise InvalidCheckpoint(f"{stored.file} became shorter while it was read")
        count = stored.num_bytes // dtype.itemsize
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=stored.offset).view(stored.shape)


def stack(weights: Weights, names: Iterable[str], sizes: Iterable[int], *inner: int) -> Tensor:
    """Tensors of shape [size, *inner] one after another in one, without a copy of each in between."""
    # All of them are looked at first: no memory is taken for what a wrong config makes of their sizes.
    parts = [weights.peek(name, size, *inner) for name, size in zip(names, sizes, strict=True)]
    target = torch.empty((sum(map(len, parts)), *inner), dtype=weights.dtype, device=weights.device)
    start = 0
    for part in parts:
        target[start : start + len(part)].copy_(part)
        start += len(part)
    return target
