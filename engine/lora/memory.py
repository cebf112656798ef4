"""Which adapters have their matrices in memory."""

from collections.abc import Callable

from baton.engine.lora.popularity import Popularity

HALF_LIFE = 16  # uses of adapters, times the number that memory has room for


class AdapterMemory:
    """Adapters in memory and those that are being read: at most `limit` in all. The least popular one leaves.

    An adapter has a number for as long as it is registered. Its matrices get a new number each time they are read, so
    that their removal on other ranks cannot affect a later copy.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._matrices: dict[int, int] = {}  # numbers of the matrices, by that of the adapter
        self._reading: set[int] = set()
        self._popularity = Popularity(HALF_LIFE * limit)

    def __contains__(self, number: int) -> bool:
        return number in self._matrices

    @property
    def has_room(self) -> bool:
        """Whether one more adapter may be read."""
        return len(self._matrices) + len(self._reading) < self._limit

    def is_reading(self, number: int) -> bool:
        """Return whether an adapter is being read."""
        return number in self._reading

    def use(self, number: int) -> int:
        """Return the number of an adapter's matrices, and count a use."""
        self._popularity.add(number)
        return self._matrices[number]

    def victim(self, may_leave: Callable[[int], bool]) -> int | None:
        """Return the least popular adapter that may leave memory."""
        return min(filter(may_leave, self._matrices), key=self._popularity.of, default=None)

    def begin(self, number: int) -> None:
        """Note that an adapter is being read; there must be room."""
        assert self.has_room
        self._reading.add(number)

    def end(self, number: int) -> None:
        """Note that the reading of an adapter has ended."""
        self._reading.discard(number)

    def put(self, number: int, matrices: int) -> None:
        """Add an adapter that was read; there must be room."""
        assert self.has_room
        self._matrices[number] = matrices

    def remove(self, number: int) -> int | None:
        """Return the number of the matrices of an adapter that leaves memory; None if it has none."""
        return self._matrices.pop(number, None)

    def forget(self, number: int) -> None:
        """Drop how often an adapter that is no longer registered was used."""
        self._popularity.forget(number)

    def owners(self) -> dict[int, int]:
        """Return the numbers of the adapters in memory by those of their matrices."""
        return {matrices: number for number, matrices in self._matrices.items()}

    def check_integrity(self) -> None:
        """Assert that the limit is kept."""
        assert len(self._matrices) + len(self._reading) <= self._limit
        assert self._reading.isdisjoint(self._matrices)
