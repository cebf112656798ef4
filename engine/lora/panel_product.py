"""An adapter's products of low rank by Baton's own kernels, in bf16. They give the same bits for any number of rows."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import Tensor

from baton.engine.layers.weights.panel_weight import PairedWeight
from baton.engine.lora.low_rank import LowRank, LowRankOutput

try:
    from baton.engine.native.products import LowRankProducts, add_low_rank
except ImportError:  # installed without the compiled extensions
    LowRankProducts = None  # type: ignore[assignment, misc]  # mypy has no optional class


class PanelProduct:
    """Products for one layer."""

    def __init__(self, matrices: LowRank) -> None:
        parts: dict[tuple[int, int], list[LowRankOutput]] = {}
        for output in matrices.outputs:
            parts.setdefault((output.ranks.start, output.ranks.stop), []).append(output)
        self._weights = [
            (PairedWeight(matrices.a[start:stop]), [(each.columns, PairedWeight(each.b)) for each in outputs])
            for (start, stop), outputs in parts.items()
        ]
        self.products = LowRankProducts(
            [
                (a.product, [(b.product, columns.start) for columns, b in outputs])
                for a, outputs in self._weights  # which keep the memory of the products
            ]
        )

    def __call__(self, x: Tensor, output: Tensor) -> None:
        """Change output [num_rows, out_features] in place, for x [num_rows, in_features]."""
        x = x.bfloat16()
        if output.dtype == torch.bfloat16 and output.is_contiguous():
            add_all([(self.products, 0, len(x))], x, output)
            return
        for a, outputs in self._weights:
            inner = a(x)
            for columns, b in outputs:
                output[:, columns].add_(b(inner))


def add_all(runs: Sequence[tuple[LowRankProducts, int, int]], x: Tensor, output: Tensor) -> None:
    """Change rows of output [num_rows, out_features] in place, for x [num_rows, in_features]; both bf16.

    runs: products, their first row and number of rows. Raises ValueError for products or rows of another layer or step.
    """
    assert x.dtype == output.dtype == torch.bfloat16
    assert output.is_contiguous()
    assert len(x) == len(output)
    x = x.contiguous()
    (num_rows, num_inputs), num_columns = x.shape, output.shape[1]
    add_low_rank(runs, x.data_ptr(), output.data_ptr(), num_rows, num_inputs, num_columns, torch.get_num_threads())


class PanelLookup:
    """The same for a layer whose inputs select rows."""

    def __init__(self, matrices: LowRank) -> None:
        self._a = matrices.a.t().contiguous()
        self._outputs = [(each.columns, each.ranks, PairedWeight(each.b)) for each in matrices.outputs]

    def __call__(self, x: Tensor, output: Tensor) -> None:
        """Change output [num_rows, out_features] in place, for x [num_rows]."""
        inner = F.embedding(x, self._a)
        for columns, ranks, b in self._outputs:
            output[:, columns].add_(b(inner[:, ranks]))
