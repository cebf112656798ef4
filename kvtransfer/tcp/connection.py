"""TCP connections between transports, from the listening socket to the handshake."""

import asyncio
import errno
import socket
from ipaddress import ip_address

from baton.kvtransfer.base import PoolDescription
from baton.kvtransfer.errors import PeerLost, PeerRefused, TransportUnavailable
from baton.kvtransfer.handshake import greet
from baton.kvtransfer.local_pool import LocalPool

UNREACHABLE = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


async def open_connection(host: str, port: int, key: str, pool: LocalPool, peer: PoolDescription) -> socket.socket:
    """Return a non-blocking socket to a peer that has admitted us.

    Raises PeerLost, PeerRefused, TransportUnavailable.
    """
    try:
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:  # the address family is not supported, or no descriptor is left
        raise TransportUnavailable(f"no socket for peer {peer.incarnation}: {error}") from error
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, (host, port))
        await greet(sock, pool, peer, key)
        keep_alive(sock)
    except (ValueError, OverflowError) as error:
        sock.close()
        raise PeerRefused(f"peer {peer.incarnation} has a garbled address: {error}") from error
    except OSError as error:
        sock.close()
        if error.errno in UNREACHABLE:
            raise TransportUnavailable(f"peer {peer.incarnation} cannot be reached: {error}") from error
        raise PeerLost(f"peer {peer.incarnation} no longer listens: {error}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def keep_alive(sock: socket.socket) -> None:
    """Disable Nagle's algorithm, and detect a vanished host, which does not close its connections, after 25 s.

    Buffer sizes are left to the kernel's autotuning.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def listening_socket(host: str, port: int = 0) -> socket.socket:
    """Listen at `host`, the address that is sent to peers, on `port`; 0: any free port.

    Raises TransportUnavailable if `host` is not an address of this machine, or one that peers cannot reach; OSError if
    the given port is not available.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        if ip_address(address[0]).is_unspecified:
            raise TransportUnavailable(f"{host} is not an address that peers can reach")
        sock = socket.socket(family)
    except OSError as error:
        raise TransportUnavailable(f"cannot listen on {host!r}: {error}") from error
    try:
        if port:  # connections of an earlier process may be in TIME_WAIT
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen()  # with SO_REUSEADDR, a second listener on the same port fails only here
    except OSError as error:
        sock.close()
        if port:
            message = f"cannot listen on port {port} of {host} for readers of KV: {error.strerror}"
            raise OSError(error.errno, message) from error
        raise TransportUnavailable(f"cannot listen on {host!r}: {error}") from error
    return sock
