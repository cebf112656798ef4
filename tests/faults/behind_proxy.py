"""A worker whose peers are told another port for KV blocks than it listens on: what stands there can go bad.

python -m tests.faults.behind_proxy TOLD_PORT REAL_PORT MODULE FLAGS...
"""

import runpy
import socket
import sys

from baton.kvtransfer.tcp import connection as tcp_connection
from baton.kvtransfer.tcp import transport as tcp


def main() -> None:
    """Runs the module as if it had been started itself."""
    _, told_port, module, *flags = sys.argv

    class Told(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            host, _ = super().getsockname()
            return host, int(told_port)

    def listening_socket(host: str, port: int = 0) -> socket.socket:
        return Told(fileno=tcp_connection.listening_socket(host, port).detach())

    tcp.listening_socket = listening_socket
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
