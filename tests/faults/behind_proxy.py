"""A worker whose peers are told another port for KV blocks than it listens on: what stands there can go bad.

python -m tests.faults.behind_proxy TOLD_PORT REAL_PORT MODULE FLAGS...
"""

import runpy
import socket
import sys

from kvtransfer import tcp


def main() -> None:
    """Runs the module as if it had been started itself."""
    _, told_port, real_port, module, *flags = sys.argv

    class Told(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            host, _ = super().getsockname()
            return host, int(told_port)

    def listening_socket(host: str, port: int = 0) -> socket.socket:
        sock = Told(socket.AF_INET)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, int(real_port)))
        return sock

    tcp.listening_socket = listening_socket
    sys.argv = [module, *flags]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
