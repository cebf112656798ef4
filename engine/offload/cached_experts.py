"""Products of experts that are in memory only while they are needed."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from baton.engine.layers.experts import AdaptedRows, Products
from baton.engine.offload.expert_cache import ExpertCache


class CachedExperts:
    """A layer's products, computed for those experts first that are in memory already.

    An expert's rows do not depend on the other experts' rows, so the results are those of all experts at once.
    """

    def __init__(self, products: Products, cache: ExpertCache, layer: int) -> None:
        self.products = products
        self._cache = cache
        self._layer = layer

    def __call__(self, rows: Tensor, sizes: Sequence[int] | Tensor, adapted: AdaptedRows | None = None) -> Tensor:
        """Return the experts' outputs for their rows; see Experts. Raises EngineError."""
        assert not isinstance(sizes, Tensor), "the host must know which expert gets which rows"
        needed = [expert for expert, size in enumerate(sizes) if size]
        starts = list(accumulate(sizes, initial=0))
        found: dict[int, Tensor] = {}
        for wave in self._cache.waves(self._layer, needed):
            if len(wave) == len(needed):
                return self.products(rows, sizes, adapted)
            places = [slice(starts[expert], starts[expert + 1]) for expert in wave]
            some = torch.cat([rows[place] for place in places])
            own = set(wave)
            own_sizes = [size if expert in own else 0 for expert, size in enumerate(sizes)]
            outputs = self.products(some, own_sizes, _of_places(adapted, places))
            found |= zip(wave, outputs.split_with_sizes([sizes[expert] for expert in wave]), strict=True)
        return torch.cat([found[expert] for expert in needed])


def _of_places(adapted: AdaptedRows | None, places: Sequence[slice]) -> AdaptedRows | None:
    return adapted and replace(adapted, adapters=torch.cat([adapted.adapters[place] for place in places]))
