"""Files of an adapter in PEFT's format: its config, and its tensors in safetensors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from io import BufferedReader
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.checkpoint.stored_tensor import StoredTensor
from baton.engine.checkpoint.tensor_index import read_header
from baton.engine.errors import InvalidAdapter, InvalidCheckpoint
from baton.engine.lora.activation import activated_digest
from baton.engine.lora.adapter_tensors import DTYPES, ModuleTensors, by_module
from baton.engine.lora.base_checkpoint import BaseCheckpoint, BaseWeights
from baton.engine.lora.expert_catalog import ExpertCatalog
from baton.engine.lora.expert_tensors import StackedTensors, sort_modules
from baton.engine.lora.finite import all_finite
from baton.engine.lora.fit import EMBEDDING, ChangeableModules, ModuleShape, check_fits
from baton.engine.lora.peft_config import PeftConfig

TENSORS = "adapter_model.safetensors"
PICKLES = ("adapter_model.bin", "adapter_model.pt", "adapter_model.pth")
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class AdaptedModel:
    """The model as adapters' files see it."""

    base: BaseCheckpoint
    modules: ChangeableModules
    experts: ExpertCatalog


@dataclass(frozen=True, slots=True)
class ModuleMatrices:
    """Matrices of one module: its output gets `scale * b @ a @ x` in addition.

    With a magnitude, the whole is then rescaled, so that the rows of the weights have these norms (DoRA).
    """

    a: Tensor  # [rank, in_features], of an embedding [rank, vocab]
    b: Tensor  # [out_features, rank]
    scale: float
    magnitude: Tensor | None = None  # [out_features]

    @property
    def tensors(self) -> Sequence[Tensor]:
        """All tensors of the module."""
        return (self.a, self.b) if self.magnitude is None else (self.a, self.b, self.magnitude)

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
    invocation: Sequence[int] = ()  # tokens from which on it changes a prompt; empty: it changes all tokens

    @property
    def rank(self) -> int:
        """The largest rank of a module."""
        return max(each.rank for each in self.modules.values())

    @property
    def num_bytes(self) -> int:
        """Size of the matrices in the files."""
        return sum(tensor.nbytes for each in self.modules.values() for tensor in each.tensors)

    def digest(self, dtype: torch.dtype) -> str:
        """Return a hash of the contents and of the type in which they are computed."""
        digest = blake2b(str(dtype).encode(), digest_size=DIGEST_BYTES, person=b"baton-lora")
        for name, module in sorted(self.modules.items()):
            digest.update(f"\n{name} {module.scale!r}".encode())
            for matrix in module.tensors:
                digest.update(f" {matrix.dtype} {tuple(matrix.shape)} ".encode())
                digest.update(matrix.contiguous().view(torch.uint8).numpy().data)
        return activated_digest(digest.hexdigest(), self.invocation)


def read_adapter(directory: Path, max_rank: int, model: AdaptedModel) -> AdapterFiles:
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
        modules = by_module(str(path), stored, use_dora=config.use_dora, prefixes=model.base.prefixes)
        known = sort_modules(str(path), modules, config, model.experts)
        shapes = {name: each.shape for name, each in known.single.items()}
        check_fits(str(directory), config.base_model, shapes, model.modules)
        _check_activation(path, known.single, config, model.modules.absorbed)
        for name, module in known.single.items():
            _check_ranks(path, name, module, config, max_rank)
        for each in known.stacked:
            _check_rank(path, each.tensors.name, config.rank_of(each.tensors.name), max_rank)
        with path.open("rb") as file:
            _check_copies(file, known.single, model.base)
            read = {name: _matrices(file, module, config) for name, module in known.single.items()}
            for each in known.stacked:
                read |= _stacked_matrices(file, each, config)
    except InvalidCheckpoint as error:
        raise InvalidAdapter(f"{TENSORS} is damaged: {error}") from error
    except OSError as error:
        raise InvalidAdapter(f"{path} cannot be read: {error.strerror}") from error
    return AdapterFiles(str(directory), config.base_model, read, config.invocation)


def _check_activation(
    path: Path, modules: Mapping[str, ModuleTensors], config: PeftConfig, absorbed: frozenset[str]
) -> None:
    if not config.invocation:
        return
    for name in modules:
        if name.endswith(EMBEDDING):
            raise InvalidAdapter(
                f"{path}: {name} cannot be changed by an activated adapter, as in PEFT; target linear layers"
            )
        if name in absorbed:
            raise InvalidAdapter(
                f"{path}: {name} cannot be changed by an activated adapter: it is applied to queries, so it would also "
                "change the keys of tokens in front of the invocation; target other projections"
            )


def _check_ranks(path: Path, name: str, module: ModuleTensors, config: PeftConfig, max_rank: int) -> None:
    a, b, rank = module.a, module.b, config.rank_of(module.name)
    if a.shape[0] != rank or b.shape[1] != rank:
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        raise InvalidAdapter(f"{path}: the matrices of {name} are {shapes}, but the config gives it rank {rank}")
    _check_rank(path, name, rank, max_rank)


def _check_rank(path: Path, name: str, rank: int, max_rank: int) -> None:
    if rank > max_rank:
        raise InvalidAdapter(
            f"{path}: {name} has rank {rank}, but max_lora_rank is {max_rank}; start with --max-lora-rank {rank}"
        )


def _check_copies(file: BufferedReader, modules: Mapping[str, ModuleTensors], base: BaseCheckpoint) -> None:
    """Raise InvalidAdapter if a copy of base weights differs from the model's."""
    copies = {name: module.base for name, module in modules.items() if module.base is not None}
    if not copies:
        return
    weights = base.open()
    for name, copy in copies.items():
        _check_copy(file, name, copy, modules[name].shape, weights)


def _check_copy(file: BufferedReader, name: str, copy: StoredTensor, shape: ModuleShape, base: BaseWeights) -> None:
    rows, columns = (shape.out_features, shape.in_features)
    if name.endswith(EMBEDDING):  # a row for each input
        rows, columns = columns, rows
    if tuple(copy.shape) != (rows, columns) or copy.dtype not in DTYPES:
        raise InvalidAdapter(
            f"{copy.file}: {copy.name} is {copy.dtype} {list(copy.shape)}, but the model's is {[rows, columns]}: "
            "vocabularies that were resized are not supported"
        )
    dtype = DTYPES[copy.dtype]
    for place, ours in base.rows(name, (rows, columns), slice(0, rows)):
        if not torch.equal(_rows(file, copy, place), ours.to(dtype)):
            raise InvalidAdapter(
                f"{copy.file}: {copy.name} differs from the model's weights: the adapter was trained on other ones, or "
                "has changed them, which is not supported"
            )


def _rows(file: BufferedReader, stored: StoredTensor, rows: slice) -> Tensor:
    row_bytes = stored.num_bytes // stored.shape[0]
    return _read(file, stored, rows.start * row_bytes, (rows.stop - rows.start) * row_bytes).view(-1, stored.shape[1])


def _matrices(file: BufferedReader, module: ModuleTensors, config: PeftConfig) -> ModuleMatrices:
    a, b = _tensor(file, module.a), _tensor(file, module.b)
    magnitude = None if module.magnitude is None else _tensor(file, module.magnitude)
    return ModuleMatrices(a, b, config.scale_of(module.name), magnitude)


def _stacked_matrices(
    file: BufferedReader, stacked: StackedTensors, config: PeftConfig
) -> Iterator[tuple[str, ModuleMatrices]]:
    tensors, scale = stacked.tensors, config.scale_of(stacked.tensors.name)
    for name, a, b in stacked.split(_tensor(file, tensors.a), _tensor(file, tensors.b)):
        yield name, ModuleMatrices(a, b, scale)


def _tensor(file: BufferedReader, stored: StoredTensor) -> Tensor:
    tensor = _read(file, stored, 0, stored.num_bytes)
    if not all_finite(tensor):
        raise InvalidAdapter(f"{stored.file}: {stored.name} has values that are not finite")
    return tensor.view(stored.shape)


def _read(file: BufferedReader, stored: StoredTensor, offset: int, num_bytes: int) -> Tensor:
    content = bytearray(num_bytes)
    file.seek(stored.offset + offset)
    if file.readinto(content) < num_bytes:
        raise InvalidCheckpoint(f"{stored.file} became shorter while it was read")
    return torch.frombuffer(content, dtype=DTYPES[stored.dtype])
