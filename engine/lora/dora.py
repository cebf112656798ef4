"""DoRA (arXiv 2402.09353): adapters that also set the norms of a weight's rows."""

from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor

from baton.engine.errors import InvalidAdapter
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.lora.adapter_files import AdapterFiles, ModuleMatrices
from baton.engine.lora.base_checkpoint import BaseCheckpoint, BaseWeights
from baton.engine.lora.finite import all_finite

MAX_KEPT = 128  # adapters whose factors stay in memory

Factors = Mapping[tuple[str, int], Tensor]  # of rows of projections, by the projection and the first row


class DoraFactors:
    """Factors on the outputs of the adapters that were read last; they need a pass over the base weights."""

    def __init__(self, base: BaseCheckpoint, sources: list[LinearSource]) -> None:
        self._base = base
        self._parts = [(source, part) for source in sources for part in source.parts]
        self._kept: OrderedDict[str, Factors] = OrderedDict()  # by digest, the oldest first

    def of(self, files: AdapterFiles, digest: str) -> Factors:
        """Return the factors of an adapter's rows on this rank; empty if it is not DoRA."""
        if all(module.magnitude is None for module in files.modules.values()):
            return {}
        factors = self._kept.pop(digest, None)
        if factors is None:
            base = self._base.open()
            factors = {
                key_of(part): factors_of(files.modules[part.name], base, source, part)
                for source, part in self._parts
                if part.name in files.modules
            }
        self._kept[digest] = factors
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return factors


def key_of(part: ProjectionRows) -> tuple[str, int]:
    """Return the key of a projection's rows."""
    return part.name, part.rows.start or 0


def factors_of(module: ModuleMatrices, base: BaseWeights, source: LinearSource, part: ProjectionRows) -> Tensor:
    """Return the magnitude of each row divided by its norm in `W + scale * b @ a`, fp32 [num_rows].

    The norm is that of the whole row, also if this rank has only some of its columns. Raises InvalidAdapter.
    """
    assert module.magnitude is not None
    norms, a, b = [], module.a.float(), module.b.float() * module.scale
    for place, weight in base.rows(part.name, (part.out_features, source.in_features), part.rows):
        norms.append(torch.linalg.vector_norm(weight.addmm_(b[place], a), dim=1))
    factors = module.magnitude.float()[part.rows] / torch.cat(norms)
    if not all_finite(factors):
        raise InvalidAdapter(f"a row of the weights of {part.name} is zero with the adapter, so it has no magnitude")
    return factors
