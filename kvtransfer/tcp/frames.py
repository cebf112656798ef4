"""The messages on a TCP connection after the handshake; blocking sockets only.

Request:  number of units (u32), then the unit ids (u32 each); see `local_pool` for the size of a unit.
Response: status (u32), number of bytes (u64), then the units in the requested order, or the text of a refusal.
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
MAX_STEP_BYTES = 1 << 20  # received between two checks for an abort; fits a core's private cache


def send_request(sock: socket.socket, units: Sequence[int]) -> None:
    """Send a request for units."""
    sock.sendall(REQUEST.pack(len(units)) + np.asarray(units, "<u4").tobytes())


def receive_request(sock: socket.socket) -> list[int] | None:
    """Receive a request and return its units; None if the caller has closed the connection.

    Raises PeerRefused for more than 2^20 units, PeerLost if the connection ends within the request.
    """
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
    """Send a response, directly from the given memory."""
    num_bytes = sum(len(buffer) for buffer in buffers)
    sock.sendall(RESPONSE.pack(status, num_bytes))
    for buffer in buffers:  # one call each: a single gathered sendmsg is a third slower for units of 1 MiB
        sock.sendall(buffer)


def receive_response(sock: socket.socket, buffers: list[memoryview]) -> Iterator[memoryview]:
    """Receive the requested units directly into the given memory; yield each buffer when it is full.

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
        raise PeerRefused(f"the peer responded with status {status} and {num_bytes} bytes, expected {expected} bytes")
    for buffer in buffers:
        receive_into(sock, buffer)
        yield buffer


def receive_into(sock: socket.socket, buffer: memoryview) -> None:
    """Receive until the buffer is full. Raises PeerLost at the connection's end."""
    while len(buffer) > 0:
        num_bytes = sock.recv_into(buffer, 0, socket.MSG_WAITALL)
        if num_bytes == 0:
            raise PeerLost("the connection ended in the middle of a message")
        buffer = buffer[num_bytes:]


def unit_buffers(memory: memoryview, unit_bytes: int, units: Sequence[int]) -> list[memoryview]:
    """Return views of the units in a pool's memory; contiguous units are joined up to 1 MiB."""
    return [
        memory[run.local * unit_bytes : (run.local + run.num_units) * unit_bytes]
        for run in runs(units, units, max_units=max(1, MAX_STEP_BYTES // unit_bytes))
    ]
