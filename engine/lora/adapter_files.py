"""Files of an adapter in PEFT's format: its config, and its tensors in safetensors."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from baton.engine.checkpoint.json_object import shown
from baton.engine.checkpoint.stored_tensor import MAX_NAME_CHARS
from baton.engine.errors import InvalidAdapter
from baton.engine.lora.peft_config import PeftConfig

TENSORS = "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
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
    """A valid adapter, which may not fit the model."""

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
                digest.update(matrix.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def read_adapter(directory: Path, max_rank: int) -> AdapterFiles:
    """Read an adapter. Raises InvalidAdapter if a file is missing, damaged or needs what is not implemented."""
    config = PeftConfig.read(directory)
    path = directory / TENSORS
    if not path.is_file():
        found = next((name for name in PICKLES if (directory / name).exists()), None)
        why = f"; {found} is a pickle, which is not read: save it with safe_serialization=True" if found else ""
        raise InvalidAdapter(f"{path} does not exist{why}")
    try:
        with safe_open(path, framework="pt") as file:
            modules = _modules(str(path), file.keys())
            read = {name: _matrices(file, path, name, config, max_rank) for name in modules}
    except (SafetensorError, OSError) as error:
        raise InvalidAdapter(f"{path} is damaged: {shown(str(error))}") from error
    return AdapterFiles(str(directory), config.base_model, read)


def _modules(source: str, tensors: Iterable[str]) -> list[str]:
    """Return the names of the modules, each of which has both matrices."""
    sides: dict[str, set[str]] = {}
    for name in tensors:
        match = NAME.fullmatch(name)
        if match is None or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise InvalidAdapter(f"{source}: {shown(name)} is no LoRA matrix of a linear layer, and is not supported")
        sides.setdefault(match["module"], set()).add(match["side"])
    if not sides:
        raise InvalidAdapter(f"{source} holds no tensors")
    for module, found in sides.items():
        if missing := {"A", "B"} - found:
            raise InvalidAdapter(f"{source}: {shown(module)} has no lora_{missing.pop()}")
    return list(sides)


def _matrices(file: safe_open, path: Path, module: str, config: PeftConfig, max_rank: int) -> ModuleMatrices:
    a, b = (_tensor(file, path, f"base_model.model.{module}.lora_{side}.weight") for side in "AB")
    rank = config.rank_of(module)
    if len(a) != rank or b.shape[1] != rank:
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        raise InvalidAdapter(f"{path}: the matrices of {module} are {shapes}, but the config gives it rank {rank}")
    if rank > max_rank:
        raise InvalidAdapter(
            f"{path}: {module} has rank {rank}, but max_lora_rank is {max_rank}; start with --max-lora-rank {rank}"
        )
    return ModuleMatrices(a, b, config.scale_of(module))


def _tensor(file: safe_open, path: Path, name: str) -> Tensor:
    tensor: Tensor = file.get_tensor(name)  # type: ignore[no-untyped-call]  # its stub has no types
    if tensor.ndim != 2 or tensor.dtype not in DTYPES:
        kind = f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
        raise InvalidAdapter(f"{path}: {name} is {kind}, but must be a matrix in float32, float16 or bfloat16")
    if not tensor.isfinite().all():
        raise InvalidAdapter(f"{path}: {name} has values that are not finite")
    return tensor
