"""A worker that advertises another port for KV blocks than it listens on: that of a proxy that injects faults.

python -m tests.faults.behind_proxy ADVERTISED_PORT MODULE FLAGS...
"""

import runpy
import socket
import sys

from baton.kvtransfer.tcp import connection as tcp_connection
from baton.kvtransfer.tcp import transport as tcp


def main() -> None:
    """Run the module as `__main__`."""
    _, advertised_port, module, *flags = sys.argv

    class AdvertisingSocket(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            host, _ = super().getsockname()
            return host, int(advertised_port)

    def listening_socket(host: str, port: int = 0) -> socket.socket:
        return AdvertisingSocket(fileno=tcp_connection.listening_socket(host, port).detach())

    tcp.listening_socket = listening_socket
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
