"""What goes over a TCP connection once the two sides have greeted each other; blocking sockets only.

Request:  number of blocks (u32), then so many block ids (u32).
Response: status (u32), number of bytes that follow (u64): the blocks in the order asked for, or a refusal's text.
All numbers are little-endian.
"""

import socket
import struct
from collections.abc import Iterator, Sequence

import numpy as np

from kvtransfer.errors import PeerLost, PeerRefused
from kvtransfer.local_pool import runs
from kvtransfer.peer_words import words

REQUEST = struct.Struct("<I")
RESPONSE = struct.Struct("<IQ")
STATUS_BLOCKS = 0
STATUS_REFUSED = 1
MAX_REQUEST_BLOCKS = 1 << 20
MAX_TEXT_BYTES = 4 << 10
MAX_STEP_BYTES = 1 << 20  # received between two looks at whether the read was aborted; fits a core's own cache


def send_request(sock: socket.socket, blocks: Sequence[int]) -> None:
    """Asks for blocks."""
    sock.sendall(REQUEST.pack(len(blocks)) + np.asarray(blocks, "<u4").tobytes())


def receive_request(sock: socket.socket) -> list[int] | None:
    """Blocks that are asked for; None when the caller has closed. Raises PeerRefused for what is no request."""
    header = bytearray(REQUEST.size)
    if not sock.recv_into(header, 1):
        return None
    receive_into(sock, memoryview(header)[1:])
    (num_blocks,) = REQUEST.unpack(header)
    if num_blocks > MAX_REQUEST_BLOCKS:
        raise PeerRefused(f"a request for {num_blocks} blocks")
    blocks = bytearray(num_blocks * 4)
    receive_into(sock, memoryview(blocks))
    ids: list[int] = np.frombuffer(blocks, "<u4").tolist()
    return ids


def send_response(sock: socket.socket, status: int, buffers: list[memoryview]) -> None:
    """Answers a request, straight from the given memory."""
    num_bytes = sum(len(buffer) for buffer in buffers)
    sock.sendall(RESPONSE.pack(status, num_bytes))
    for buffer in buffers:  # one by one: gathered into one call, blocks of 1 MiB go a third slower
        sock.sendall(buffer)


def receive_response(sock: socket.socket, buffers: list[memoryview]) -> Iterator[memoryview]:
    """Receives the blocks that were asked for, straight into the given memory; yields each buffer when it is full.

    Raises PeerRefused or PeerLost.
    """
    header = bytearray(RESPONSE.size)
    receive_into(sock, memoryview(header))
    status, num_bytes = RESPONSE.unpack(header)
    if status == STATUS_REFUSED and num_bytes <= MAX_TEXT_BYTES:
        text = bytearray(num_bytes)
        receive_into(sock, memoryview(text))
        raise PeerRefused(f"the peer refused: {words(text.decode(errors='replace'))}")
    expected = sum(len(buffer) for buffer in buffers)
    if status != STATUS_BLOCKS or num_bytes != expected:
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


def block_buffers(memory: memoryview, block_bytes: int, blocks: Sequence[int]) -> list[memoryview]:
    """Where blocks lie in a pool's memory, neighbours joined up to a step."""
    return [
        memory[run.local * block_bytes : (run.local + run.num_blocks) * block_bytes]
        for run in runs(blocks, blocks, max_blocks=max(1, MAX_STEP_BYTES // block_bytes))
    ]
