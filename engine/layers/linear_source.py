"""Which parts of a checkpoint's projections a Linear computes."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProjectionRows:
    """Rows of one projection's weight: each is an output."""

    name: str  # of the module, such as model.layers.0.self_attn.q_proj
    out_features: int  # of the whole projection
    rows: slice  # rows in the Linear

    @property
    def num_rows(self) -> int:
        """Number of outputs that the Linear has of the projection."""
        return len(range(self.out_features)[self.rows])


@dataclass(frozen=True, slots=True)
class LinearSource:
    """Projections of the same input whose outputs a Linear concatenates, and the columns that it has of them."""

    parts: Sequence[ProjectionRows]
    in_features: int  # of the whole projections
    columns: slice
