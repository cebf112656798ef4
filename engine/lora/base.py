"""Application of adapters to the rows of a step."""

from collections.abc import Sequence
from typing import Protocol

from baton.engine.execution.batch import Batch
from baton.engine.lora.low_rank import LowRank


class ModelAdapters(Protocol):
    """Matrices of adapters by number, and their products in the model's steps.

    The engine's thread calls all methods but `add`.
    """

    load_s: float  # of the last copy of an adapter to the device; 0: there was none

    def add(self, number: int, matrices: Sequence[LowRank | None]) -> None:
        """Lay out the matrices of each Linear under a number that no batch has yet; may be called on any thread."""
        ...

    def remove(self, number: int) -> None:
        """Drop an adapter that no request uses, if it is there."""
        ...

    def plan(self, batch: Batch | None) -> None:
        """Prepare a step, whose products add what the adapters of the batch's sequences do; None: without tokens."""
        ...

    def resident(self) -> frozenset[int]:
        """Return the numbers of the adapters that a step can use without a copy."""
        ...
