"""Which parts of blocks the ranks of one group read from the ranks of another.

A block of a whole model has equal parts. Of a group of `n` ranks each holds an `n`th of every block's parts, one rank
after the other; where there are more ranks than parts, several ranks that follow each other hold the same one. A model
whose blocks cannot be divided has one part, and every rank holds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True, slots=True)
class UnitPairs:
    """What `KVTransport.read` takes."""

    remote: Sequence[int]
    local: Sequence[int]


@dataclass(frozen=True, slots=True)
class BlockSlice:
    """What a rank reads of each block from one rank of another group: units that are neighbours on either side.

    They are the units of these two ranks' block sizes; see `units`.
    """

    source: int  # the rank that is read
    num_units: int
    remote_first: int  # unit in a block of the source
    remote_per_block: int
    local_first: int  # unit in a block of the reader
    local_per_block: int

    def pairs(self, remote: Sequence[int], local: Sequence[int]) -> UnitPairs:
        """The units to read for blocks `remote` of the source and our blocks `local`, pairwise."""
        return UnitPairs(
            units_in(remote, self.remote_first, self.num_units, self.remote_per_block),
            units_in(local, self.local_first, self.num_units, self.local_per_block),
        )


WHOLE_BLOCK = BlockSlice(0, num_units=1, remote_first=0, remote_per_block=1, local_first=0, local_per_block=1)


@dataclass(frozen=True, slots=True)
class PartGroup:
    """Ranks that together hold a model's blocks. The number of parts is a multiple of that of ranks, or divides it."""

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
        """Parts that each rank holds."""
        return max(1, self.num_parts // self.num_ranks)

    @property
    def num_replicas(self) -> int:
        """Ranks that hold the same parts."""
        return max(1, self.num_ranks // self.num_parts)

    def first_part(self, rank: int) -> int:
        """The first of the parts that a rank holds."""
        return rank * self.num_parts // self.num_ranks

    def holder(self, part: int, reader: int) -> int:
        """The rank that a reader takes a part from; of replicas, neighbouring readers take different ones."""
        return part // self.parts_per_rank * self.num_replicas + reader % self.num_replicas


def slices_of(sources: PartGroup, readers: PartGroup, reader: int) -> list[BlockSlice]:
    """What a rank of `readers` reads from which ranks of `sources`, to have all of its parts once."""
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
    """The units from `first` on, so many of each block."""
    if per_block == 1:
        return blocks
    return [block * per_block + unit for block in blocks for unit in range(first, first + count)]
