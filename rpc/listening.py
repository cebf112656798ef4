"""Listening addresses of gRPC servers: a port or a Unix socket."""

import grpc

from baton.rpc.tls import Security
from baton.rpc.unix_sockets import unix_address
from baton.settings.names import host_port


def listen(server: grpc.aio.Server, security: Security, host: str, port: int, uds: str | None = None) -> str:
    """Make the server listen on host:port, or on the Unix socket `uds`; return its address for channels.

    Raises RuntimeError if the address is in use.
    """
    if uds is None:
        return host_port(host, security.bind(server, host_port(host, port)))
    address = unix_address(uds)
    security.bind(server, address)
    return address
