"""A rank's input columns of a weight, rounded as one rank rounds the whole weight."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from baton.engine.checkpoint.joined_tensors import join
from baton.engine.checkpoint.weights import Stored, Weights
from baton.engine.errors import UnsupportedModel
from baton.engine.layers.weights.fp8_weight import StoredWeight
from baton.engine.layers.weights.grouped_weight import GroupedWeight
from baton.engine.layers.weights.int4_weight import group_of, int4_matrix
from baton.engine.layers.weights.int8_weight import int8_weight, row_scales

UNIT = 8  # columns of a part of a 4-bit weight are whole multiples of this, see GroupedMatrix.columns


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """Some input columns of a stored weight."""

    read: Callable[[slice], Sequence[Stored]]  # returns views of any columns
    in_features: int  # of the whole weight
    columns: slice

    @classmethod
    def of(cls, read: Callable[[slice], Sequence[Stored]], in_features: int, columns: slice) -> "ColumnPart":
        """Return a part; columns: also slice(None), for all."""
        ours = range(in_features)[columns]
        return cls(read, in_features, slice(ours.start, ours.stop))

    def stored(self) -> Sequence[Stored]:
        """Return views of the part."""
        return self.read(self.columns)

    def rounded(self, weights: Weights, quantization: str | None) -> StoredWeight | None:
        """Round the part with the groups and scales of the whole weight, of which it reads more for that.

        None if the part is the whole, or is not rounded. Raises UnsupportedModel for columns that cannot be taken out
        of a 4-bit weight.
        """
        if self.columns == slice(0, self.in_features):
            return None
        if quantization == "int8":
            whole = join(weights, self.read(slice(0, self.in_features)))
            return int8_weight(whole[:, self.columns], row_scales(whole))
        group = group_of(self.in_features) if quantization == "int4" else None
        return None if group is None else self._rounded_in_groups(weights, group)

    def _rounded_in_groups(self, weights: Weights, group: int) -> GroupedWeight:
        first, end = self.columns.start, self.columns.stop
        if first % UNIT or end % UNIT:
            raise UnsupportedModel(
                f"quantization int4: a weight with {self.in_features} input columns cannot be divided among ranks: "
                f"columns {first} to {end} are not whole units of {UNIT}; use fewer tensor-parallel ranks"
            )
        around = slice(first // group * group, -(-end // group) * group)
        matrix = int4_matrix(join(weights, self.read(around)), group)
        return GroupedWeight(matrix.columns(slice(first - around.start, end - around.start)), weights.dtype)
