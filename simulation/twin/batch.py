"""The sequences of a replica that decode: each gives a token with every tick, until it ends or needs a block more."""

from collections import deque
from collections.abc import Iterator
from heapq import heappop, heappush

from baton.simulation.twin.sequence import Sequence

Due = tuple[int, int, int, Sequence]  # tick, order, life: of equal ticks the sequence that came first

FAR_TICKS = 1 << 40


class Batch:
    """Owns the decoding sequences. Nothing is done for a token: all that counts is when the next of them is special."""

    def __init__(self, max_num_seqs: int, block_size: int) -> None:
        self.tick = 0  # steps so far in which the batch took part
        self._max_num_seqs = max_num_seqs
        self._block_size = block_size
        self._members: dict[Sequence, None] = {}
        self._joining: deque[Sequence] = deque()  # until the next step, and until there is a place
        self._ends: list[Due] = []
        self._growths: list[Due] = []  # ticks after which a block is full

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self._members
        yield from self._joining

    @property
    def num_sequences(self) -> int:
        """With those that are about to join."""
        return len(self._members) + len(self._joining)

    @property
    def ticks_to_next(self) -> int:
        """Ticks until a sequence ends or needs a block; there is one at least."""
        return min(self._first(self._ends), self._first(self._growths)) - self.tick

    def join(self, sequence: Sequence) -> None:
        """It has all tokens but one computed; it decodes from the next step on."""
        self._joining.append(sequence)

    def refill(self) -> None:
        """Gives free places to those that wait for one: a step is about to begin."""
        while self._joining and len(self._members) < self._max_num_seqs:
            sequence = self._joining.popleft()
            self._members[sequence] = None
            sequence.joined_tick = self.tick
            heappush(self._ends, (self.tick + sequence.num_left, sequence.order, sequence.life, sequence))
            self.plan_growth(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It decodes no more; what was planned for it is forgotten."""
        if sequence in self._members:
            self._catch_up(sequence)
            del self._members[sequence]
        else:
            self._joining.remove(sequence)
        sequence.life += 1

    def ended(self) -> Iterator[Sequence]:
        """Those whose last token has come with this tick; they have left."""
        while self._first(self._ends) <= self.tick:
            sequence = heappop(self._ends)[3]
            self.leave(sequence)
            yield sequence

    def full(self) -> list[Sequence]:
        """Those that need a block for their next token, in the order of their coming."""
        found: list[Sequence] = []
        while self._first(self._growths) <= self.tick:
            found.append(heappop(self._growths)[3])
            self._catch_up(found[-1])
        return found

    def plan_growth(self, sequence: Sequence) -> None:
        """A member that has got blocks needs one more when these are full."""
        num_room = len(sequence.blocks) * self._block_size - sequence.num_tokens
        heappush(self._growths, (sequence.joined_tick + num_room + 1, sequence.order, sequence.life, sequence))

    def _catch_up(self, sequence: Sequence) -> None:
        """Counts the tokens that came since it joined, or since the last time."""
        num_new = self.tick - sequence.joined_tick
        sequence.num_tokens += num_new
        sequence.num_left -= num_new
        sequence.joined_tick = self.tick

    def _first(self, dues: list[Due]) -> int:
        """The tick of the first that is still planned."""
        while dues and dues[0][2] != dues[0][3].life:
            heappop(dues)
        return dues[0][0] if dues else self.tick + FAR_TICKS
