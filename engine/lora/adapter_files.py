"""Files of an adapter in PEFT's format: its config, and its tensors in safetensors."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.checkpoint.json_object import shown
from baton.engine.checkpoint.stored_tensor import MAX_NAME_CHARS, StoredTensor
from baton.engine.checkpoint.tensor_index import read_header
from baton.engine.errors import InvalidAdapter, InvalidCheckpoint
from baton.engine.layers.linear_source import LinearSource
from baton.engine.lora.fit import ModuleShape, check_fits
from baton.engine.lora.peft_config import PeftConfig

TENSORS = "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ModuleMatrices:
    """Matrices of one module: its output gets `scale * b @ a @ x` in addition."""

    a: Tensor  # [rank, in_features]
    b: Tensor  # [out_features, rank]
    scale: float

    @property
    def rank(self) -> int:
        """Inner width of the two matrices."""
        return len(self.a)


@dataclass(frozen=True, slots=True)
class AdapterFiles:
    """A valid adapter, which fits the model."""

    source: str
    base_model: str
    modules: Mapping[str, ModuleMatrices]  # by the names of the model's modules: model.layers.0.mlp.down_proj

    @property
    def rank(self) -> int:
        """The largest rank of a module."""
        return max(each.rank for each in self.modules.values())

    @property
    def num_bytes(self) -> int:
        """Size of the matrices in the files."""
        return sum(each.a.nbytes + each.b.nbytes for each in self.modules.values())

    def digest(self, dtype: torch.dtype) -> str:
        """Return a hash of the contents and of the type in which they are computed."""
        digest = blake2b(str(dtype).encode(), digest_size=DIGEST_BYTES, person=b"baton-lora")
        for name, module in sorted(self.modules.items()):
            digest.update(f"\n{name} {module.scale!r}".encode())
            for matrix in (module.a, module.b):
                digest.update(f" {matrix.dtype} {tuple(matrix.shape)} ".encode())
                digest.update(matrix.contiguous().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def read_adapter(directory: Path, max_rank: int, sources: Sequence[LinearSource]) -> AdapterFiles:
    """Return an adapter, copied into memory. Raises InvalidAdapter if it is damaged, not supported, or does not fit.

    The file is not mapped: one that is replaced meanwhile would change the matrices, and one that is truncated would
    end the process. Matrices that do not fit are not read: they may have any size.
    """
    config = PeftConfig.read(directory)
    path = directory / TENSORS
    if not path.is_file():
        found = next((name for name in PICKLES if (directory / name).exists()), None)
        why = f"; {found} is a pickle, which is not read: save it with safe_serialization=True" if found else ""
        raise InvalidAdapter(f"{path} does not exist{why}")
    try:
        stored = {tensor.name: tensor for tensor in read_header(path)}
        modules = _modules(str(path), stored)
        shapes = {name: _shape(path, *(stored[each] for each in _names(name))) for name in modules}
        check_fits(str(directory), config.base_model, shapes, sources)
        for name in modules:
            _check_ranks(stored, path, name, config, max_rank)
        with path.open("rb") as file:
            read = {name: _matrices(file, stored, name, config) for name in modules}
    except InvalidCheckpoint as error:
        raise InvalidAdapter(f"{TENSORS} is damaged: {error}") from error
    except OSError as error:
        raise InvalidAdapter(f"{path} cannot be read: {error.strerror}") from error
    return AdapterFiles(str(directory), config.base_model, read)


def _modules(source: str, tensors: Iterable[str]) -> list[str]:
    """Return the names of the modules, each of which has both matrices."""
    sides: dict[str, set[str]] = {}
    for name in tensors:
        match = NAME.fullmatch(name)
        if match is None or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise InvalidAdapter(f"{source}: {shown(name)} is not a LoRA matrix of a linear layer: not supported")
        sides.setdefault(match["module"], set()).add(match["side"])
    if not sides:
        raise InvalidAdapter(f"{source} holds no tensors")
    for module, found in sides.items():
        if missing := {"A", "B"} - found:
            raise InvalidAdapter(f"{source}: {shown(module)} has no lora_{missing.pop()}")
    return list(sides)


def _names(module: str) -> tuple[str, str]:
    return f"base_model.model.{module}.lora_A.weight", f"base_model.model.{module}.lora_B.weight"


def _shape(path: Path, a: StoredTensor, b: StoredTensor) -> ModuleShape:
    for tensor in (a, b):
        if len(tensor.shape) != 2 or tensor.dtype not in DTYPES:
            kind = f"{tensor.dtype} {list(tensor.shape)}"
            raise InvalidAdapter(
                f"{path}: {tensor.name} is {kind}, but must be a matrix in float32, float16 or bfloat16"
            )
    return ModuleShape(a.shape[1], b.shape[0])


def _check_ranks(
    stored: Mapping[str, StoredTensor], path: Path, module: str, config: PeftConfig, max_rank: int
) -> None:
    a, b = (stored[name] for name in _names(module))
    rank = config.rank_of(module)
    if a.shape[0] != rank or b.shape[1] != rank:
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        raise InvalidAdapter(f"{path}: the matrices of {module} are {shapes}, but the config gives it rank {rank}")
    if rank > max_rank:
        raise InvalidAdapter(
            f"{path}: {module} has rank {rank}, but max_lora_rank is {max_rank}; start with --max-lora-rank {rank}"
        )


def _matrices(
    file: BufferedReader, stored: Mapping[str, StoredTensor], module: str, config: PeftConfig
) -> ModuleMatrices:
    a, b = (_tensor(file, stored[name]) for name in _names(module))
    return ModuleMatrices(a, b, config.scale_of(module))


def _tensor(file: BufferedReader, stored: StoredTensor) -> Tensor:
    content = bytearray(stored.num_bytes)
    file.seek(stored.offset)
    if file.readinto(content) < stored.num_bytes:
        raise InvalidCheckpoint(f"{stored.file} became shorter while it was read")
    tensor = torch.frombuffer(content, dtype=DTYPES[stored.dtype])
    if not tensor.isfinite().all():
        raise InvalidAdapter(f"{stored.file}: {stored.name} has values that are not finite")
    return tensor.view(stored.shape)
