"""The control messages of a staged read; the blocks themselves travel over another transport. All numbers are u32.

Reader: STAGE, number of units, the units: copy these into a frame. RETURN: the reader has read the oldest frame.
Owner:  STAGED, the frame: it is filled and lent to the reader. RETURNED: the frame was lent to the reader until now, so
        what it has read is what it requested. REFUSED, number of bytes, the reason.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Sequence

import numpy as np

from baton.kvtransfer.errors import PeerLost, PeerRefused, truncated_text

STAGE, RETURN = 1, 2
STAGED, RETURNED, REFUSED = 1, 2, 3
MAX_STAGED = 2  # frames lent to or requested over one connection: one is read while the other is filled
MAX_TEXT_BYTES = 4 << 10
WORD = struct.Struct("<I")


async def send_words(sock: socket.socket, *numbers: int) -> None:
    """Send numbers as u32, little-endian."""
    await asyncio.get_running_loop().sock_sendall(sock, struct.pack(f"<{len(numbers)}I", *numbers))


async def receive_bytes(sock: socket.socket, count: int) -> bytes:
    """Receive exactly `count` bytes. Raises PeerLost at the connection's end."""
    received = bytearray()
    while len(received) < count:
        piece = await asyncio.get_running_loop().sock_recv(sock, count - len(received))
        if not piece:
            raise PeerLost("the connection ended")
        received += piece
    return bytes(received)


async def receive_word(sock: socket.socket) -> int:
    """Receive one u32, little-endian. Raises PeerLost at the connection's end."""
    (number,) = WORD.unpack(await receive_bytes(sock, WORD.size))
    return int(number)


class StagingControl:
    """The reader's half of a control connection, for one read at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._staged: deque[int] = deque()
        self._num_returned = 0

    async def request(self, units: Sequence[int]) -> None:
        """Request that the owner copies units into a frame."""
        message = np.array([STAGE, len(units), *units], "<u4").tobytes()
        await asyncio.get_running_loop().sock_sendall(self.sock, message)

    async def staged(self) -> int:
        """Wait for the next frame that the owner has filled, and return its index. Raises PeerRefused, PeerLost."""
        while not self._staged:
            await self._receive()
        return self._staged.popleft()

    async def give_back(self) -> None:
        """Return the oldest frame, and wait until the owner confirms that it was lent to us until now."""
        await send_words(self.sock, RETURN)
        while not self._num_returned:
            await self._receive()
        self._num_returned -= 1

    async def _receive(self) -> None:
        what = await receive_word(self.sock)
        if what == STAGED:
            self._staged.append(await receive_word(self.sock))
        elif what == RETURNED:
            self._num_returned += 1
        elif what == REFUSED:
            size = await receive_word(self.sock)
            text = await receive_bytes(self.sock, min(size, MAX_TEXT_BYTES))
            raise PeerRefused(f"the peer refused: {truncated_text(text.decode(errors='replace'))}")
        else:
            raise PeerRefused(f"the peer sent an unknown message: {what}")
