"""Adjacent rows of a step with the same adapter."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

Product = Callable[[Tensor, Tensor], None]  # adds what an adapter does to a layer's input to its output


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows, and the products that they get."""

    rows: slice
    products: Sequence[Product | None]  # of each layer

    def changes(self, places: range) -> bool:
        """Return whether there is a product in some layers."""
        return any(each is not None for each in self.products[places.start : places.stop])
