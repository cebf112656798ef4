"""Adjacent rows of a step with the same adapter."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from baton.engine.lora.panel_product import PanelProduct, add_all

Product = Callable[[Tensor, Tensor], None]  # adds what an adapter does to a layer's input to its output


@dataclass(frozen=True, slots=True)
class AdapterProducts:
    """Products of an adapter."""

    of_layers: Sequence[Product | None]
    mixtures: frozenset[range]  # places of the experts of those mixtures that it changes

    @classmethod
    def of(cls, products: Sequence[Product | None], mixtures: Iterable[range]) -> "AdapterProducts":
        """Return an adapter's products. mixtures: places of the experts of all mixtures."""
        changed = (each for each in mixtures if any(products[place] is not None for place in each))
        return cls(products, frozenset(changed))


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows, and the products that they get."""

    rows: slice
    products: AdapterProducts


def add_products(runs: Iterable[tuple[Product | None, slice]], x: Tensor, output: Tensor) -> None:
    """Change rows of output [num_rows, out_features] in place, for x [num_rows, in_features] or [num_rows].

    runs: products and their rows; those of Baton's own kernels are one native call.
    """
    native = []
    is_native = x.dtype == output.dtype == torch.bfloat16 and output.is_contiguous()
    for product, rows in runs:
        if is_native and isinstance(product, PanelProduct):
            native.append((product.products, rows.start, rows.stop - rows.start))
        elif product is not None:
            product(x[rows], output[rows])
    if native:
        add_all(native, x, output)
