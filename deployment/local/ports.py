"""Ports for processes that keep their port when they restart."""

import random
import socket
from contextlib import ExitStack

FIRST_PORT, LAST_PORT = 20000, 32000  # below the ephemeral port range
NUM_ATTEMPTS = 1000
_given: set[int] = set()


class PortInUse(OSError):
    """The port is in use, or there are not enough free ports."""


def free_ports(host: str, count: int) -> list[int]:
    """Return `count` distinct free ports of `host`. Raises PortInUse.

    Ports that this process has been given before come last: what keeps one may be about to start again.
    """
    ports: list[int] = []
    draw = random.SystemRandom()  # two clusters started together must not draw the same ports
    with ExitStack() as held:
        for attempt in range(2 * NUM_ATTEMPTS):
            if len(ports) == count:
                break
            port = draw.randrange(FIRST_PORT, LAST_PORT)
            if port in _given and attempt < NUM_ATTEMPTS:
                continue
            probe = held.enter_context(_socket(host))
            try:
                probe.bind((host, port))
            except OSError:
                continue
            ports.append(port)
    if len(ports) < count:
        raise PortInUse(f"did not find {count} free ports from {FIRST_PORT} to {LAST_PORT} on {host}")
    _given.update(ports)
    return ports


def check_port(host: str, port: int) -> None:
    """Raise PortInUse if the port cannot be listened on."""
    with _socket(host) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: ignore connections in TIME_WAIT
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUse(f"cannot listen on {host}:{port}: {error.strerror}") from error


def _socket(host: str) -> socket.socket:
    return socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
