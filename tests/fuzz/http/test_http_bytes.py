"""The HTTP server with arbitrary bytes: it responds in HTTP/1.1, never with 500, and closes the connection."""

import re
import socket
import time
from contextlib import suppress

import psutil
import pytest
from hypothesis import strategies as st

from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.http.odd_http import REQUESTS, raw_requests
from tests.fuzz.router_rig import RouterRig
from tests.fuzz.transport_rig import Talk, talks

PATIENCE_S = 10.0
QUIET_S = 0.03  # without a response, after which the client closes
STATUS = re.compile(rb"^HTTP/1\.1 (\d{3}) ", re.MULTILINE)


def exchange(port: int, talk: Talk, waits: bool = False) -> bytes:
    """Return all bytes received, with `waits` after waiting for some. Fails if the connection does not end."""
    received = b""
    began_s = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # the server may close with our bytes unread
            for piece in talk.pieces():
                sock.sendall(piece)
            with suppress(TimeoutError):
                while not (waits and answers(received)):
                    sock.settimeout(PATIENCE_S if waits else QUIET_S)
                    chunk = sock.recv(1 << 16)
                    if not chunk:
                        break
                    received += chunk
            sock.settimeout(PATIENCE_S)
            with suppress(OSError):  # the server has closed
                sock.shutdown(socket.SHUT_WR)
            while chunk := sock.recv(1 << 16):
                received += chunk
    assert time.monotonic() - began_s < PATIENCE_S
    return received


def answers(received: bytes) -> list[int]:
    """Return the statuses, without interim ones (1xx)."""
    return [status for status in map(int, STATUS.findall(received)) if status >= 200]


def test_any_bytes_get_a_valid_response(fuzzing: Fuzzing, served: RouterRig) -> None:
    process = psutil.Process(served.router.child.pid)
    num_connections = len(process.net_connections())

    def check(talk: Talk) -> None:
        received = exchange(served.router.port, talk)
        assert received == b"" or received.startswith(b"HTTP/1.1 "), received[:500]
        assert all(status < 500 for status in answers(received)), received[:1000]

    fuzzing.run(talks(raw_requests, st.just(True)), check, 120)
    served.check_serves()
    end_s = time.monotonic() + PATIENCE_S
    while len(process.net_connections()) > num_connections + 2:
        assert time.monotonic() < end_s, process.net_connections()
        time.sleep(0.01)


@pytest.mark.parametrize("request_bytes", REQUESTS)
def test_a_request_may_arrive_in_pieces(served: RouterRig, request_bytes: bytes) -> None:
    """The first status does not depend on where the request is split."""
    first = answers(exchange(served.router.port, Talk(request_bytes, (), True), waits=True))[0]
    assert first < 500
    for place in range(1, len(request_bytes), 1 + len(request_bytes) // 12):
        answered = answers(exchange(served.router.port, Talk(request_bytes, (place,), True), waits=True))
        assert answered[0] == first, request_bytes[:place]
