"""Connections on which nothing is said for a while: whether the other side is there, and when it ends."""

import asyncio
import socket


def is_open(sock: socket.socket) -> bool:
    """Whether the other side of a non-blocking connection that carries nothing is still there."""
    try:
        return sock.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


async def readable(sock: socket.socket) -> None:
    """Returns when there is something to read, or the connection has ended; takes nothing of it."""
    loop = asyncio.get_running_loop()
    has_come = asyncio.Event()
    loop.add_reader(sock.fileno(), has_come.set)
    try:
        await has_come.wait()
    finally:
        loop.remove_reader(sock.fileno())


async def ended(sock: socket.socket) -> None:
    """Returns when the connection has ended; never if the other side says something first, which is left to be read."""
    await readable(sock)
    if is_open(sock):
        await asyncio.Event().wait()
