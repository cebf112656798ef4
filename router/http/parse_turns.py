"""Turns for requests that take much time to parse for their size, so that the event loop has time for others.

The parser calls back for each part of a body and each trailer. In chunked encoding, a client may make a part of each
byte.
"""

import asyncio
from collections.abc import Callable

SLICE_BYTES = 16 << 10  # to parse without a look at the number of callbacks
MAX_CALLBACKS = 256  # of a slice, above which the connection waits for its turn
CALLBACK_S = 0.5e-6  # CPU time of one, about
MAX_SHARE = 0.25  # of the time, for such slices of all connections together


class ParseTurns:
    """The time that such connections may take, one after the other."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: of the event loop."""
        self._clock = clock
        self._free_s = 0.0

    def next_s(self, num_callbacks: int) -> float:
        """Return the time of the next turn of a connection that has just taken one."""
        self._free_s = max(self._free_s, self._clock()) + num_callbacks * CALLBACK_S / MAX_SHARE
        return self._free_s


class PacedData:
    """Data of one connection that waits for its turn."""

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: ParseTurns, parse: Callable[[bytes], None]) -> None:
        """`parse`: called with the data at the turn."""
        self._loop = loop
        self._turns = turns
        self._parse = parse
        self._data = bytearray()
        self._turn: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether further data must wait, too."""
        return self._turn is not None

    def add(self, data: bytes) -> None:
        """Keep data behind that which waits."""
        self._data += data

    def wait(self, num_callbacks: int) -> None:
        """Wait for the next turn, after a slice with so many callbacks."""
        if self._turn is None:
            self._turn = self._loop.call_at(self._turns.next_s(num_callbacks), self._take_turn)

    def close(self) -> None:
        """Forget all of it."""
        self._data.clear()
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None

    def _take_turn(self) -> None:
        self._turn = None
        data = bytes(self._data)
        self._data.clear()
        self._parse(data)
