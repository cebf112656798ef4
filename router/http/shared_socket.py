"""A port that several processes listen on; the kernel gives each new connection to one of them (SO_REUSEPORT)."""

import socket
from contextlib import suppress


def shared_socket(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet (0: at a free port that nobody shares). OSError if the address is taken.

    Who only binds gets no connections, but keeps the port from being given to others.
    """
    shared = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # old connections do not matter
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind((host, port))
    except OSError:
        shared.close()
        raise
    return shared


def accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """The connections that wait to be accepted, non-blocking ones: closing the listener would break them off."""
    listener.setblocking(False)
    waiting: list[socket.socket] = []
    with suppress(OSError):  # there are no more, or no file descriptors for them
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            waiting.append(connection)
    return waiting
