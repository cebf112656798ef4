"""Which parts of a checkpoint's routed experts a rank computes."""

from collections.abc import Iterator
from dataclasses import dataclass

from baton.engine.families.tensor_names import ExpertNames
from baton.engine.layers.linear_source import LinearSource, ProjectionRows
from baton.engine.moe import MoEConfig

FUSED = "gate_up_proj"  # rows of gate and up in one matrix of an expert


@dataclass(frozen=True, slots=True)
class ExpertSource:
    """Projections of one layer's experts, and the part of them that a rank has."""

    prefix: str  # of the block with router and experts, such as model.layers.0.mlp
    names: ExpertNames
    config: MoEConfig
    hidden_size: int
    here: range | None  # experts of the rank; None: several workers share the experts, whose places change
    inner: slice  # inner columns of each

    @property
    def firsts(self) -> tuple[str, ...]:
        """Names of the projections of an expert's input."""
        names = self.names
        return (names.up,) if self.config.activation == "relu2" else (names.gate, names.up)

    def module(self, expert: int, projection: str) -> str:
        """Return the name of an expert's projection."""
        return f"{self.prefix}.{self.names.experts}.{expert}.{projection}"

    def linears(self, expert: int) -> tuple[LinearSource, LinearSource]:
        """Return the sources of the two products of an expert."""
        size, inner, fused = self.config.intermediate_size, self.inner, self.module(expert, FUSED)
        gate_up = LinearSource(
            [ProjectionRows(self.module(expert, name), size, inner) for name in self.firsts],
            self.hidden_size,
            slice(None),
            [ProjectionRows(fused, 2 * size, rows) for rows in self._fused_rows()],
        )
        down = ProjectionRows(self.module(expert, self.names.down), self.hidden_size, slice(None))
        return gate_up, LinearSource([down], size, inner)

    def all_linears(self) -> Iterator[LinearSource]:
        """Yield the sources of all experts, also those of other ranks."""
        for expert in range(self.config.num_experts):
            yield from self.linears(expert)

    def _fused_rows(self) -> tuple[slice, ...]:
        if self.config.activation == "relu2":
            return ()
        return fused_rows(self.names, self.config.intermediate_size, self.inner)


def fused_rows(names: ExpertNames, size: int, inner: slice) -> tuple[slice, slice]:
    """Return the rows of a fused matrix with some inner columns of gate and up. size: inner columns in all."""
    if names.all_alternate:
        return slice(2 * inner.start, 2 * inner.stop, 2), slice(2 * inner.start + 1, 2 * inner.stop, 2)
    return inner, slice(inner.start + size, inner.stop + size)
