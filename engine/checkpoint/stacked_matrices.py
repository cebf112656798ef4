"""Matrices of all experts of a layer in one tensor, plain or in MXFP4."""

from dataclasses import dataclass

from baton.engine.checkpoint.packed.compressed_layout import Mxfp4Layout
from baton.engine.checkpoint.packed.scheme import PackedScheme
from baton.engine.checkpoint.packed.stored_layout import PackedMatrix, Wanted
from baton.engine.checkpoint.stored_matrix import StoredMatrix
from baton.engine.checkpoint.weights import Stored, Weights
from baton.engine.errors import InvalidCheckpoint, UnsupportedModel

# Suffixes of GPT-OSS: [experts, rows, groups, 16] bytes of two E2M1 codes each, and [experts, rows, groups] exponents.
BLOCKS, SCALES = "_blocks", "_scales"
GROUP, GROUP_BYTES = 32, 16
MXFP4 = PackedScheme(layout="mxfp4", group_size=GROUP, has_zeros=False)


@dataclass(frozen=True, slots=True)
class StackedMatrices:
    """Reader of a stack of matrices of one shape."""

    weights: Weights
    name: str
    shape: tuple[int, int, int]  # number of matrices, rows, columns
    is_transposed: bool = False  # plain matrices are stored as [columns, rows]

    @property
    def is_stored(self) -> bool:
        """Whether the checkpoint has these matrices in one tensor."""
        return self.name in self.weights or self.is_packed

    @property
    def is_packed(self) -> bool:
        """Whether they are stored in MXFP4."""
        return self.name + BLOCKS in self.weights

    @property
    def names(self) -> list[str]:
        """Names of the stored tensors."""
        return [self.name + BLOCKS, self.name + SCALES] if self.is_packed else [self.name]

    def expect(self) -> None:
        """Check the stored tensors, which are read later. Raises InvalidCheckpoint or UnsupportedModel."""
        count, rows, columns = self.shape
        if not self.is_packed:
            self.weights.expect(self.name, count, *((columns, rows) if self.is_transposed else (rows, columns)))
            return
        blocks, scales = self._packed_shapes()
        self.weights.expect_bytes(self.name + BLOCKS, *blocks)
        self.weights.expect_bytes(self.name + SCALES, *scales)

    def part(self, index: int, rows: slice, columns: slice) -> Stored:
        """Return a view of some rows and columns of one matrix; the rows may have a step, the columns not."""
        if self.is_packed:
            return self._packed(index, rows, columns)
        count, num_rows, num_columns = self.shape
        if not self.is_transposed:
            return self.weights.peek(self.name, *self.shape, part=(index, rows, columns))
        found = self.weights.peek(self.name, count, num_columns, num_rows, part=(index, columns, rows))
        if not isinstance(found, StoredMatrix) or found.scales is not None:
            raise UnsupportedModel(f"tensor {self.name} is transposed and quantised, which is not supported")
        return StoredMatrix(found.values.T)

    def _packed(self, index: int, rows: slice, columns: slice) -> PackedMatrix:
        blocks_shape, scales_shape = self._packed_shapes()
        blocks = self.weights.peek_bytes(self.name + BLOCKS, *blocks_shape, part=(index, rows))
        scales = self.weights.peek_bytes(self.name + SCALES, *scales_shape, part=(index, rows))
        layout, shape = Mxfp4Layout(MXFP4), (len(blocks), self.shape[2])
        wanted = Wanted.of(f"{self.name}[{index}]", shape, (slice(None), columns))
        layout.check(wanted)
        return PackedMatrix(layout, {".weight_packed": blocks.flatten(1), ".weight_scale": scales}, wanted)

    def _packed_shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        count, rows, columns = self.shape
        if columns % GROUP:
            raise InvalidCheckpoint(f"{self.name} has {columns} input columns, which groups of {GROUP} do not divide")
        return (count, rows, columns // GROUP, GROUP_BYTES), (count, rows, columns // GROUP)
