"""What the two sides of a staged read say to each other, while the bytes take another way. All numbers are u32.

Reader: STAGE, number of units, the units: copy these into one of your frames. RETURN: I have read the oldest of them.
Owner:  STAGED, the frame. RETURNED: it was yours until now, so what you read was what you had asked for.
        REFUSED, number of bytes, why.
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
MAX_STAGED = 2  # frames that one reader has or has asked for: it reads one while the other is filled
MAX_TEXT_BYTES = 4 << 10
WORD = struct.Struct("<I")


async def send_words(sock: socket.socket, *numbers: int) -> None:
    """Sends numbers."""
    await asyncio.get_running_loop().sock_sendall(sock, struct.pack(f"<{len(numbers)}I", *numbers))


async def receive_bytes(sock: socket.socket, count: int) -> bytes:
    """So many bytes. Raises PeerLost at the connection's end."""
    received = bytearray()
    while len(received) < count:
        piece = await asyncio.get_running_loop().sock_recv(sock, count - len(received))
        if not piece:
            raise PeerLost("the connection ended")
        received += piece
    return bytes(received)


async def receive_word(sock: socket.socket) -> int:
    """A number."""
    (number,) = WORD.unpack(await receive_bytes(sock, WORD.size))
    return int(number)


class StagingControl:
    """The reader's half of one connection, for one read at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._staged: deque[int] = deque()
        self._num_returned = 0

    async def ask(self, units: Sequence[int]) -> None:
        """Has the owner copy units into a frame."""
        message = np.array([STAGE, len(units), *units], "<u4").tobytes()
        await asyncio.get_running_loop().sock_sendall(self.sock, message)

    async def staged(self) -> int:
        """The owner's frame that is filled next."""
        while not self._staged:
            await self._receive()
        return self._staged.popleft()

    async def give_back(self) -> None:
        """Returns once the owner has said that the frame was ours until now."""
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
            raise PeerRefused(f"the peer answered with {what}")
