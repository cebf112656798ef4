"""Matrices of an adapter, placed as one rank's Linear has the projections that they change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.errors import InvalidAdapter
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.lora.adapter_files import AdapterFiles, ModuleMatrices
from baton.engine.lora.dora import Factors, key_of
from baton.engine.lora.finite import all_finite


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
    parts = source.parts_in(files.modules)
    modules = {part.name: files.modules[part.name] for part in parts if part.name in files.modules}
    if not modules:
        return None
    a = torch.cat([F.pad(each.a[:, source.columns].to(dtype), (0, 0, 0, each.rank % 2)) for each in modules.values()])
    made = LowRank(a, _outputs(parts, modules, dtype, factors))
    if not all(map(all_finite, (a, *(output.b for output in made.outputs)))):
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
    for name, group in groupby(parts, key=lambda part: part.name):  # rows of one projection may be in many pieces
        each = list(group)
        start, end = end, end + sum(part.num_rows for part in each)
        if name not in modules:
            continue
        module = modules[name]
        b = torch.cat([module.b[part.rows] for part in each]).float() * module.scale
        gain = None
        if module.magnitude is not None:
            factor = torch.cat([factors[key_of(part)] for part in each])
            b, gain = b * factor.unsqueeze(1), factor - 1
        b = F.pad(b.to(dtype), (0, module.rank % 2))
        outputs.append(LowRankOutput(slice(start, end), ranks[name], b, gain))
    return outputs
