"""Where the weights of layers are kept, if it is not where loading makes them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForm:
    """A weight as products read it: its tensors, and what else a product must know of it."""

    kind: str
    tensors: Mapping[str, Tensor]
    numbers: Mapping[str, int] = field(default_factory=dict)
    parts: tuple["WeightForm", ...] = ()  # of a weight that is joined from several


class Placement(Protocol):
    """Keeps the weights of layers; a layer's weights are placed in the same order at each start."""

    def begin_layer(self, layer: int) -> None:
        """Begin a layer, whose weights are placed next."""
        ...

    def place(
        self, make: Callable[[], WeightForm], expert: int | None = None, names: tuple[str, ...] = ()
    ) -> WeightForm:
        """Return a weight with its tensors where they are kept; `make` is called only if it is not there yet.

        The contents of these tensors must not be read before the model computes. expert: number of the expert that the
        weight belongs to; names: of the checkpoint's tensors that it is made of.
        """
        ...

    def end_layer(self) -> None:
        """End the layer."""
        ...
