"""Matrices of an adapter, placed as one rank's Linear has the projections that they change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.errors import InvalidAdapter
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.lora.adapter_files import AdapterFiles, ModuleMatrices

WHOLE = ("lm_head", "embed_tokens")


@dataclass(frozen=True, slots=True)
class LowRankOutput:
    """Part of an output to which `b @ (a @ x)[ranks]` is added."""

    columns: slice  # of the output
    ranks: slice  # of the rows of `a`
    b: Tensor  # [number of columns, number of ranks]; the scale is in it


@dataclass(frozen=True, slots=True)
class LowRank:
    """Matrices for one Linear. Projections that it fuses have rows of `a` and columns of the output of their own.

    Odd ranks are padded by a zero, since native products multiply pairs.
    """

    a: Tensor  # [rank of all projections, in_features]
    outputs: Sequence[LowRankOutput]


def even(rank: int) -> int:
    """Return the number of rows of `a` for a projection of this rank."""
    return rank + rank % 2


def low_ranks(files: AdapterFiles, sources: Sequence[LinearSource], dtype: torch.dtype) -> list[LowRank | None]:
    """Return the matrices for each Linear, None for those that the adapter leaves as they are.

    Raises InvalidAdapter if the adapter changes a module that the model lacks, or one of another shape.
    """
    known = {part.name for source in sources for part in source.parts}
    unknown = [name for name in files.modules if name not in known]
    if unknown:
        raise InvalidAdapter(f"{files.source}: {_reason(unknown, known)}")
    return [_low_rank(files, source, dtype) for source in sources]


def _reason(unknown: Sequence[str], known: set[str]) -> str:
    name, more = unknown[0], f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
    if name.rpartition(".")[2] in WHOLE:
        return f"{name}{more} cannot be changed: embeddings and the output layer have no adapters"
    if ".experts." in name or "shared_expert" in name:
        return f"{name}{more} cannot be changed: experts have no adapters; target the attention's projections"
    suffixes = ", ".join(sorted({each.rpartition(".")[2] for each in known}))
    return f"the model has no linear layer {name}{more} that can be changed; those that can be are {suffixes}"


def _low_rank(files: AdapterFiles, source: LinearSource, dtype: torch.dtype) -> LowRank | None:
    modules = {part.name: files.modules[part.name] for part in source.parts if part.name in files.modules}
    if not modules:
        return None
    for part in source.parts:
        if part.name in modules:
            _check(files, part, source.in_features, modules[part.name])
    a = torch.cat([F.pad(each.a[:, source.columns].to(dtype), (0, 0, 0, each.rank % 2)) for each in modules.values()])
    made = LowRank(a, _outputs(source.parts, modules, dtype))
    if not all(bool(each.isfinite().all()) for each in (a, *(output.b for output in made.outputs))):
        kind = str(dtype).removeprefix("torch.")
        raise InvalidAdapter(
            f"{files.source}: values of {', '.join(modules)} are too large for {kind}; start with --lora-dtype float32"
        )
    return made


def _outputs(
    parts: Sequence[ProjectionRows], modules: Mapping[str, ModuleMatrices], dtype: torch.dtype
) -> list[LowRankOutput]:
    ranks, rank = {}, 0
    for name, module in modules.items():
        ranks[name] = slice(rank, rank := rank + even(module.rank))
    outputs, end = [], 0
    for part in parts:
        start, end = end, end + part.num_rows
        if part.name in modules:
            module = modules[part.name]
            b = F.pad((module.b[part.rows].float() * module.scale).to(dtype), (0, module.rank % 2))
            outputs.append(LowRankOutput(slice(start, end), ranks[part.name], b))
    return outputs


def _check(files: AdapterFiles, part: ProjectionRows, in_features: int, module: ModuleMatrices) -> None:
    found, needed = (len(module.b), module.a.shape[1]), (part.out_features, in_features)
    if found != needed:
        named = f", probably {files.base_model}" if files.base_model else ""
        raise InvalidAdapter(
            f"{files.source}: the matrices of {part.name} are for {found[1]} inputs and {found[0]} outputs, but the "
            f"model has {needed[1]} and {needed[0]}: the adapter was trained on another model{named}"
        )
