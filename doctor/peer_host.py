"""Where a peer's transports listen, and whether that is this machine."""

import socket
from contextlib import suppress

from baton.kvtransfer.base import PoolDescription
from baton.kvtransfer.endpoint import decode
from baton.kvtransfer.errors import TransferError
from baton.kvtransfer.nixl import transport as nixl
from baton.kvtransfer.shared_memory import transport as shared_memory
from baton.kvtransfer.tcp import transport as tcp

DISCARD_PORT = 9  # RFC 863; nothing is sent to it


def peer_host(peer: PoolDescription) -> str | None:
    """The address where a peer's transports listen; None if it has none that other machines could reach."""
    with suppress(TransferError):
        return decode(tcp.Endpoint, peer, tcp.NAME).host
    with suppress(TransferError):
        return decode(nixl.Endpoint, peer, nixl.NAME).host
    return None


def is_same_host(peer: PoolDescription) -> bool:
    """Whether a peer runs under our kernel, in another network namespace perhaps."""
    try:
        theirs = decode(shared_memory.Endpoint, peer, shared_memory.NAME).host
    except TransferError:
        host = peer_host(peer)
        return host is not None and is_this_machine(host)
    return theirs.partition(" ")[0] == shared_memory.host_id().partition(" ")[0]  # the kernel's boot


def is_this_machine(host: str) -> bool:
    """Whether an address is one of ours."""
    return local_address(host) == host


def local_address(host: str) -> str | None:
    """The address by which we would reach a host; nothing is sent."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((host, DISCARD_PORT))
        except OSError:
            return None
        return str(sock.getsockname()[0])
