"""Which parts of a checkpoint's projections a Linear computes."""

from collections.abc import Container, Sequence
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
    fused: Sequence[ProjectionRows] = ()  # the same outputs, as adapters name them that were trained on fused weights

    def parts_in(self, modules: Container[str]) -> Sequence[ProjectionRows]:
        """Return the parts by the names under which modules of an adapter have them."""
        return self.fused if any(part.name in modules for part in self.fused) else self.parts


def source_of_tensor(name: str, out_features: int, in_features: int) -> LinearSource:
    """Return the source of a whole projection whose weights are the tensor `name`."""
    return LinearSource(
        [ProjectionRows(name.removesuffix(".weight"), out_features, slice(None))], in_features, slice(None)
    )
