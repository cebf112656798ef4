"""How far the other end of a connection is with what it was sent.

The transport itself does not know: the kernel has its share, and over TLS another transport below has most of the rest.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios

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
