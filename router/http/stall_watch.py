"""Abort of connections whose clients read too slowly."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable

from baton.router.admission import unread_output as unread

IS_LINUX = sys.platform == "linux"
NUM_ACKED = struct.Struct("=120xQ")  # Linux's struct tcp_info up to tcpi_bytes_acked
NUM_QUEUED = struct.Struct("=i")


def num_delivered(transport: asyncio.Transport) -> int:
    """Return a number that grows as the client reads: on Linux the acknowledged bytes, else minus the buffer size."""
    if IS_LINUX:
        info = _socket(transport).getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, NUM_ACKED.size)
        acked: int = NUM_ACKED.unpack(info)[0]
        return acked
    return -transport.get_write_buffer_size()


def is_all_delivered(transport: asyncio.Transport) -> bool:
    """Return whether the client has received all output, as far as known: on Linux including the kernel's buffers."""
    if transport.get_write_buffer_size():
        return False
    if IS_LINUX:
        queued = fcntl.ioctl(_socket(transport).fileno(), termios.TIOCOUTQ, bytes(NUM_QUEUED.size))
        return not NUM_QUEUED.unpack(queued)[0]
    return True


def _socket(transport: asyncio.Transport) -> socket.socket:
    sock: socket.socket = transport.get_extra_info("socket")
    return sock


CHECK_INTERVAL_S = 1.0


class StallWatch:
    """Watch over one connection while its client lags; aborts it if the client reads too slowly.

    A client lags while the transport's buffer is full, and after the router closed the connection until all output is
    received.
    """

    def __init__(self, transport: asyncio.Transport, stalled: Callable[[], None]) -> None:
        """`stalled` is called before the abort of a connection whose client reads too slowly."""
        self._transport = transport
        self._stalled = stalled
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = False
        self._num_delivered = self._num_delivered_first = 0
        self._progress_s = self._since_s = 0.0  # time of the last progress; start of the window that measures the rate

    def start(self, is_ending: bool = False) -> None:
        """Start to watch. `is_ending`: the connection was closed, and ends once all output is received."""
        self._is_ending = self._is_ending or is_ending
        if self._timer is None:
            self._progress_s = self._since_s = self._loop.time()
            self._num_delivered = self._num_delivered_first = num_delivered(self._transport)
            self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def caught_up(self) -> None:
        """Stop the watch: the client has read nearly all. A closed connection is watched until it ends."""
        if not self._is_ending:
            self.stop()

    def stop(self) -> None:
        """Stop the watch."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        now_s, delivered = self._loop.time(), num_delivered(self._transport)
        if delivered > self._num_delivered:
            self._num_delivered, self._progress_s = delivered, now_s
        elif self._is_ending and is_all_delivered(self._transport):
            self._transport.abort()
            return
        if now_s - self._progress_s > unread.STALL_S or self._is_too_slow(now_s):
            self._stalled()
            self._transport.abort()
            return
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def _is_too_slow(self, now_s: float) -> bool:
        """Return whether the rate of a finished window was too low, and start the next window."""
        passed_s = now_s - self._since_s
        if passed_s <= unread.STALL_S:
            return False
        rate = (self._num_delivered - self._num_delivered_first) / passed_s
        self._since_s, self._num_delivered_first = now_s, self._num_delivered
        return rate < unread.LEAST_BYTES_PER_S
