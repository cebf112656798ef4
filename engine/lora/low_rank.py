"""Matrices of an adapter, placed as one rank's Linear has the projections that they change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.errors import InvalidAdapter
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.lora.adapter_files import AdapterFiles, ModuleMatrices
from baton.engine.lora.dora import Factors, key_of


@dataclass(frozen=True, slots=True)
class LowRankOutput:
    """Part of an output to which `b @ (a @ x)[ranks]` is added."""

    columns: slice  # of the output
    ranks: slice  # of the rows of `a`
    b: Tensor  # [number of columns, number of ranks]; the scale is in it
    gain: Tensor | None = None  # [number of columns] fp32: multiple of the base output that is added; None: nothing


@dataclass(frozen=True, slots=True)
class LowRank:
    """Matrices for one Linear. Each projection that it fuses has separate rows of `a` and columns of the output.

    Odd ranks are padded by a zero, since native products multiply pairs.
    """

    a: Tensor  # [rank of all projections, in_features]
    outputs: Sequence[LowRankOutput]


def even(rank: int) -> int:
    """Return the number of rows of `a` for a projection of this rank."""
    return rank + rank % 2


def low_ranks(
    files: AdapterFiles, sources: Sequence[LinearSource], dtype: torch.dtype, factors: Factors
) -> list[LowRank | None]:
    """Return the matrices for each Linear, None for those that the adapter leaves as they are.

    factors: of DoRA. Raises InvalidAdapter if a value is too large for the type.
    """
    return [_low_rank(files, source, dtype, factors) for source in sources]


def _low_rank(files: AdapterFiles, source: LinearSource, dtype: torch.dtype, factors: Factors) -> LowRank | None:
    modules = {part.name: files.modules[part.name] for part in source.parts if part.name in files.modules}
    if not modules:
        return None
    a = torch.cat([F.pad(each.a[:, source.columns].to(dtype), (0, 0, 0, each.rank % 2)) for each in modules.values()])
    made = LowRank(a, _outputs(source.parts, modules, dtype, factors))
    if not all(bool(each.isfinite().all()) for each in (a, *(output.b for output in made.outputs))):
        kind = str(dtype).removeprefix("torch.")
        raise InvalidAdapter(
            f"{files.source}: values of {', '.join(modules)} are too large for {kind}; start with --lora-dtype float32"
        )
    return made


def _outputs(
    parts: Sequence[ProjectionRows], modules: Mapping[str, ModuleMatrices], dtype: torch.dtype, factors: Factors
) -> list[LowRankOutput]:
    ranks, rank = {}, 0
    for name, module in modules.items():
        ranks[name] = slice(rank, rank := rank + even(module.rank))
    outputs, end = [], 0
    for part in parts:
        start, end = end, end + part.num_rows
        if part.name in modules:
            module, factor = modules[part.name], factors.get(key_of(part))
            b = module.b[part.rows].float() * module.scale
            if factor is not None:
                b *= factor.unsqueeze(1)
            b, gain = F.pad(b.to(dtype), (0, module.rank % 2)), None if factor is None else factor - 1
            outputs.append(LowRankOutput(slice(start, end), ranks[part.name], b, gain))
    return outputs
