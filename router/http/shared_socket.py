"""A port shared by several processes: the kernel distributes new connections among them (SO_REUSEPORT)."""

import socket
from contextlib import suppress


def shared_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound but does not listen. `port`: 0: any free port. Raises OSError if it is in use.

    A socket that is only bound gets no connections, but reserves the port.
    """
    shared = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        shared.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # also binds while old connections are in TIME_WAIT
        shared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        shared.bind((host, port))
    except OSError:
        shared.close()
        raise
    return shared


def accept_waiting(listener: socket.socket) -> list[socket.socket]:
    """Accept all pending connections and return them, non-blocking: closing the listener would reset them."""
    listener.setblocking(False)
    waiting: list[socket.socket] = []
    with suppress(OSError):  # no more connections, or no more file descriptors
        while True:
            connection, _ = listener.accept()
            connection.setblocking(False)
            waiting.append(connection)
    return waiting
