"""The parts of blocks that the ranks of one group read from the ranks of another.

A block of a whole model consists of equal parts. In a group of `n` ranks, rank `i` holds the `i`th `n`th of every
block's parts. If there are more ranks than parts, consecutive ranks hold the same part. A model whose blocks cannot be
divided has one part, which every rank holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True, slots=True)
class UnitPairs:
    """The `remote` and `local` units of one `KVTransport.read`."""

    remote: Sequence[int]
    local: Sequence[int]


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """The contiguous units of each block that a rank reads from one rank of another group.

    They are contiguous on both sides. Their size follows from the block sizes of these two ranks; see `local_pool`.
    """

    source: int  # the rank that is read
    num_units: int
    remote_first: int  # unit in a block of the source
    remote_per_block: int
    local_first: int  # unit in a block of the reader
    local_per_block: int

    def pairs(self, remote: Sequence[int], local: Sequence[int]) -> UnitPairs:
        """Return the units to read for blocks `remote` of the source into our blocks `local`, pairwise."""
        return UnitPairs(
            units_in(remote, self.remote_first, self.num_units, self.remote_per_block),
            units_in(local, self.local_first, self.num_units, self.local_per_block),
        )


WHOLE_BLOCK = BlockSlice(0, num_units=1, remote_first=0, remote_per_block=1, local_first=0, local_per_block=1)


@dataclass(frozen=True, slots=True)
class PartGroup:
    """Ranks that together hold a model's blocks. One of `num_parts` and `num_ranks` must be a multiple of the other."""

    num_parts: int  # of a block of the whole model
    num_ranks: int

    def __post_init__(self) -> None:
        fewer, more = sorted((self.num_parts, self.num_ranks))
        if fewer < 1 or more % fewer:
            raise ValueError(
                f"{self.num_parts} parts of a block cannot be divided among {self.num_ranks} ranks: one of the two "
                "numbers must be a multiple of the other"
            )

    @property
    def parts_per_rank(self) -> int:
        """Parts of a block on each rank."""
        return max(1, self.num_parts // self.num_ranks)

    @property
    def num_replicas(self) -> int:
        """Number of ranks that hold the same parts."""
        return max(1, self.num_ranks // self.num_parts)

    def first_part(self, rank: int) -> int:
        """Return the first of the parts that a rank holds."""
        return rank * self.num_parts // self.num_ranks

    def holder(self, part: int, reader: int) -> int:
        """Return the rank from which a reader reads a part; neighbouring readers use different replicas."""
        return part // self.parts_per_rank * self.num_replicas + reader % self.num_replicas


def slices_of(sources: PartGroup, readers: PartGroup, reader: int) -> list[BlockSlice]:
    """Return what rank `reader` of `readers` reads from each rank of `sources`, so that it gets each part once.

    Raises ValueError if the two groups divide a block into different numbers of parts.
    """
    if sources.num_parts != readers.num_parts:
        raise ValueError(f"blocks of {sources.num_parts} parts cannot be read into blocks of {readers.num_parts}")
    unit = gcd(sources.parts_per_rank, readers.parts_per_rank)  # parts
    first = readers.first_part(reader)
    end = first + readers.parts_per_rank
    slices = []
    start = first
    while start < end:
        source = sources.holder(start, reader)
        held = sources.first_part(source)
        stop = min(end, held + sources.parts_per_rank)
        slices.append(
            BlockSlice(
                source,
                num_units=(stop - start) // unit,
                remote_first=(start - held) // unit,
                remote_per_block=sources.parts_per_rank // unit,
                local_first=(start - first) // unit,
                local_per_block=readers.parts_per_rank // unit,
            )
        )
        start = stop
    return slices


def units_in(blocks: Sequence[int], first: int, count: int, per_block: int) -> Sequence[int]:
    """Return units `first` to `first + count - 1` of each block, numbered through the pool."""
    if per_block == 1:
        return blocks
    return [block * per_block + unit for block in blocks for unit in range(first, first + count)]
