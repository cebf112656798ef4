"""Adjacent rows of a step with the same adapter."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

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
