"""The end of connections whose clients take too little of what they were sent."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable

from baton.router.admission import unread_output as unread

IS_LINUX = sys.platform == "linux"
NUM_ACKED = struct.Struct("=120xQ")  # of Linux's struct tcp_info, up to tcpi_bytes_acked
NUM_QUEUED = struct.Struct("=i")


def num_taken(transport: asyncio.Transport) -> int:
    """A number that grows as the other end takes more: on Linux, bytes that it acknowledged."""
    if IS_LINUX:
        info = _socket(transport).getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, NUM_ACKED.size)
        acked: int = NUM_ACKED.unpack(info)[0]
        return acked
    return -transport.get_write_buffer_size()


def has_taken_all(transport: asyncio.Transport) -> bool:
    """Whether nothing is known to be on its way."""
    if transport.get_write_buffer_size():
        return False
    if IS_LINUX:
        queued = fcntl.ioctl(_socket(transport).fileno(), termios.TIOCOUTQ, bytes(NUM_QUEUED.size))
        return not NUM_QUEUED.unpack(queued)[0]
    return True


def _socket(transport: asyncio.Transport) -> socket.socket:
    sock: socket.socket = transport.get_extra_info("socket")
    return sock


LOOK_INTERVAL_S = 1.0


class StallWatch:
    """Looks at one connection while its client is behind, and aborts it if the client takes too little.

    A client is behind while the transport has more to send than it buffers, and after the router closed the connection
    until all is taken.
    """

    def __init__(self, transport: asyncio.Transport, stalled: Callable[[], None]) -> None:
        """`stalled` is called when the client took too little, in front of the abort."""
        self._transport = transport
        self._stalled = stalled
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = False
        self._num_taken = self._num_taken_first = 0
        self._progress_s = self._since_s = 0.0  # of the last byte taken; of the window in which the rate is measured

    def start(self, is_ending: bool = False) -> None:
        """Begin to look. `is_ending`: the connection was closed, and ends once all is taken."""
        self._is_ending = self._is_ending or is_ending
        if self._timer is None:
            self._progress_s = self._since_s = self._loop.time()
            self._num_taken = self._num_taken_first = num_taken(self._transport)
            self._timer = self._loop.call_later(LOOK_INTERVAL_S, self._look)

    def caught_up(self) -> None:
        """Stop looking: the client has taken nearly all. A connection that was closed is looked at to its end."""
        if not self._is_ending:
            self.stop()

    def stop(self) -> None:
        """Stop looking."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now_s, taken = self._loop.time(), num_taken(self._transport)
        if taken > self._num_taken:
            self._num_taken, self._progress_s = taken, now_s
        elif self._is_ending and has_taken_all(self._transport):
            self._transport.abort()
            return
        if now_s - self._progress_s > unread.STALL_S or self._is_too_slow(now_s):
            self._stalled()
            self._transport.abort()
            return
        self._timer = self._loop.call_later(LOOK_INTERVAL_S, self._look)

    def _is_too_slow(self, now_s: float) -> bool:
        """Return whether the window is over and the rate in it was too low; begin the next window."""
        passed_s = now_s - self._since_s
        if passed_s <= unread.STALL_S:
            return False
        rate = (self._num_taken - self._num_taken_first) / passed_s
        self._since_s, self._num_taken_first = now_s, self._num_taken
        return rate < unread.LEAST_BYTES_PER_S
