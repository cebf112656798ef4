"""Where a process's gRPC server listens: at a port, or at a Unix socket."""

import grpc

from baton.rpc.tls import Security
from baton.rpc.unix_sockets import unix_address
from baton.settings.names import host_port


def listen(server: grpc.aio.Server, security: Security, host: str, port: int, uds: str | None = None) -> str:
    """Have the server listen at host:port, or at the Unix socket `uds`; return its address for channels.

    Raises RuntimeError if the address is taken.
    """
    if uds is None:
        return host_port(host, security.bind(server, host_port(host, port)))
    address = unix_address(uds)
    security.bind(server, address)
    return address
