"""Ports for processes that keep theirs over restarts."""

import random
import socket
from contextlib import ExitStack

FIRST_PORT, LAST_PORT = 20000, 32000  # below the range from which systems give ports to outgoing connections
NUM_ATTEMPTS = 1000


class PortInUse(OSError):
    """Another process listens on the port."""


def free_ports(host: str, count: int) -> list[int]:
    """Return different ports of `host` on which nobody listens now. Raises PortInUse."""
    ports: list[int] = []
    draw = random.SystemRandom()  # two clusters started together must not draw the same ports
    with ExitStack() as held:
        for _ in range(NUM_ATTEMPTS):
            if len(ports) == count:
                return ports
            port = draw.randrange(FIRST_PORT, LAST_PORT)
            probe = held.enter_context(_socket(host))
            try:
                probe.bind((host, port))
            except OSError:
                continue
            ports.append(port)
    if len(ports) < count:
        raise PortInUse(f"found no {count} free ports from {FIRST_PORT} to {LAST_PORT} on {host}")
    return ports


def check_port(host: str, port: int) -> None:
    """Raises PortInUse if one cannot listen on the port now."""
    with _socket(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: old connections do not matter
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}") from error


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
