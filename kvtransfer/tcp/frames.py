"""What goes over a TCP connection once the two sides have greeted each other; blocking sockets only.

Request:  number of units (u32), then so many unit ids (u32); units of the two sides' block sizes, see `units`.
Response: status (u32), number of bytes that follow (u64): the units in the order asked for, or a refusal's text.
All numbers are little-endian.
"""

import socket
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from baton.kvtransfer.errors import PeerLost, PeerRefused, truncated_text
from baton.kvtransfer.local_pool import runs

REQUEST = struct.Struct("<I")
RESPONSE = struct.Struct("<IQ")
STATUS_UNITS = 0
STATUS_REFUSED = 1
MAX_REQUEST_UNITS = 1 << 20
MAX_TEXT_BYTES = 4 << 10
MAX_STEP_BYTES = 1 << 20  # received between two looks at whether the read was aborted; fits a core's own cache


def send_request(sock: socket.socket, units: Sequence[int]) -> None:
    """Asks for units."""
    sock.sendall(REQUEST.pack(len(units)) + np.asarray(units, "<u4").tobytes())


def receive_request(sock: socket.socket) -> list[int] | None:
    """Units that are asked for; None when the caller has closed. Raises PeerRefused for what is no request."""
    header = bytearray(REQUEST.size)
    if not sock.recv_into(header, 1):
        return None
    receive_into(sock, memoryview(header)[1:])
    (num_units,) = REQUEST.unpack(header)
    if num_units > MAX_REQUEST_UNITS:
        raise PeerRefused(f"a request for {num_units} units")
    units = bytearray(num_units * 4)
    receive_into(sock, memoryview(units))
    ids: list[int] = np.frombuffer(units, "<u4").tolist()
    return ids


def send_response(sock: socket.socket, status: int, buffers: list[memoryview]) -> None:
    """Answers a request, straight from the given memory."""
    num_bytes = sum(len(buffer) for buffer in buffers)
    sock.sendall(RESPONSE.pack(status, num_bytes))
    for buffer in buffers:  # one by one: gathered into one call, units of 1 MiB go a third slower
        sock.sendall(buffer)


def receive_response(sock: socket.socket, buffers: list[memoryview]) -> Iterator[memoryview]:
    """Receives the units that were asked for, straight into the given memory; yields each buffer when it is full.

    Raises PeerRefused or PeerLost.
    """
    header = bytearray(RESPONSE.size)
    receive_into(sock, memoryview(header))
    status, num_bytes = RESPONSE.unpack(header)
    if status == STATUS_REFUSED and num_bytes <= MAX_TEXT_BYTES:
        text = bytearray(num_bytes)
        receive_into(sock, memoryview(text))
        raise PeerRefused(f"the peer refused: {truncated_text(text.decode(errors='replace'))}")
    expected = sum(len(buffer) for buffer in buffers)
    if status != STATUS_UNITS or num_bytes != expected:
        raise PeerRefused(f"the peer answered with status {status} and {num_bytes} bytes, {expected} were expected")
    for buffer in buffers:
        receive_into(sock, buffer)
        yield buffer


def receive_into(sock: socket.socket, buffer: memoryview) -> None:
    """Fills the buffer. Raises PeerLost at the connection's end."""
    while len(buffer) > 0:
        num_bytes = sock.recv_into(buffer, 0, socket.MSG_WAITALL)
        if num_bytes == 0:
            raise PeerLost("the connection ended in the middle of a message")
        buffer = buffer[num_bytes:]


def unit_buffers(memory: memoryview, unit_bytes: int, units: Sequence[int]) -> list[memoryview]:
    """Where units lie in a pool's memory, neighbours joined up to a step."""
    return [
        memory[run.local * unit_bytes : (run.local + run.num_units) * unit_bytes]
        for run in runs(units, units, max_units=max(1, MAX_STEP_BYTES // unit_bytes))
    ]
