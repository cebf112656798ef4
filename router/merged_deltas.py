"""Deltas of one request that its client has yet to take, merged by choice."""

from baton.router.generation import ChoiceDelta

DELTA_BYTES = 500  # of a delta without content, in memory


class MergedDeltas:
    """Owns at most one delta a choice, however many were added."""

    def __init__(self) -> None:
        self.num_bytes = 0  # 0: there is none
        self._deltas: dict[int, ChoiceDelta] = {}

    def add(self, delta: ChoiceDelta) -> None:
        """Add a delta, which must not be used afterwards."""
        self.num_bytes += delta.num_bytes
        if (earlier := self._deltas.get(delta.index)) is not None:
            earlier.extend(delta)
        else:
            self.num_bytes += DELTA_BYTES
            self._deltas[delta.index] = delta

    def take(self) -> list[ChoiceDelta]:
        """Return the merged deltas; none is left."""
        deltas, self._deltas, self.num_bytes = self._deltas, {}, 0
        return list(deltas.values())
