"""What goes over a TCP connection once the two sides have greeted each other; blocking sockets only.

Request:  number of blocks (u32), then so many block ids (u32).
Response: status (u32), number of bytes that follow (u64): the blocks in the order asked for, or a refusal's text.
All numbers are little-endian.
"""

import socket
import struct
from collections.abc import Callable, Sequence

import numpy as np

from kvtransfer.errors import PeerLost, PeerRefused
from kvtransfer.local_pool import runs

REQUEST = struct.Struct("<I")
RESPONSE = struct.Struct("<IQ")
STATUS_BLOCKS = 0
STATUS_REFUSED = 1
MAX_REQUEST_BLOCKS = 1 << 20
MAX_TEXT_BYTES = 4 << 10
MAX_BUFFERS = 256  # a call; the kernel's own limit is 1024
MAX_STEP_BYTES = 4 << 20  # received between two looks at whether the read was aborted


def send_request(sock: socket.socket, blocks: Sequence[int]) -> None:
    """Asks for blocks."""
    sock.sendall(REQUEST.pack(len(blocks)) + np.asarray(blocks, "<u4").tobytes())


def receive_request(sock: socket.socket) -> list[int] | None:
    """Blocks that are asked for; None when the caller has closed. Raises PeerRefused for what is no request."""
    header = bytearray(REQUEST.size)
    if not sock.recv_into(header, 1):
        return None
    receive_into(sock, [memoryview(header)[1:]])
    (num_blocks,) = REQUEST.unpack(header)
    if num_blocks > MAX_REQUEST_BLOCKS:
        raise PeerRefused(f"a request for {num_blocks} blocks")
    blocks = bytearray(num_blocks * 4)
    receive_into(sock, [memoryview(blocks)])
    ids: list[int] = np.frombuffer(blocks, "<u4").tolist()
    return ids


def send_response(sock: socket.socket, status: int, buffers: list[memoryview]) -> None:
    """Answers a request, straight from the given memory."""
    num_bytes = sum(len(buffer) for buffer in buffers)
    pending = [memoryview(RESPONSE.pack(status, num_bytes)), *buffers]
    first = 0
    while first < len(pending):
        first = _advance(pending, first, sock.sendmsg(pending[first : first + MAX_BUFFERS]))


def receive_response(sock: socket.socket, buffers: list[memoryview], check: Callable[[], None]) -> None:
    """Receives the blocks that were asked for, straight into the given memory. Raises PeerRefused or PeerLost.

    `check` is called between two steps and may raise.
    """
    header = bytearray(RESPONSE.size)
    receive_into(sock, [memoryview(header)])
    status, num_bytes = RESPONSE.unpack(header)
    if status == STATUS_REFUSED and num_bytes <= MAX_TEXT_BYTES:
        text = bytearray(num_bytes)
        receive_into(sock, [memoryview(text)])
        raise PeerRefused(f"the peer refused: {text.decode(errors='replace')}")
    expected = sum(len(buffer) for buffer in buffers)
    if status != STATUS_BLOCKS or num_bytes != expected:
        raise PeerRefused(f"the peer answered with status {status} and {num_bytes} bytes, {expected} were expected")
    step: list[memoryview] = []
    step_bytes = 0
    for buffer in buffers:
        step.append(buffer)
        step_bytes += len(buffer)
        if step_bytes >= MAX_STEP_BYTES or len(step) == MAX_BUFFERS:
            check()
            receive_into(sock, step)
            step, step_bytes = [], 0
    receive_into(sock, step)


def receive_into(sock: socket.socket, buffers: list[memoryview]) -> None:
    """Fills the buffers. Raises PeerLost at the connection's end."""
    pending = list(buffers)
    first = 0
    while first < len(pending):
        num_bytes = sock.recvmsg_into(pending[first : first + MAX_BUFFERS], 0, socket.MSG_WAITALL)[0]
        if num_bytes == 0 and len(pending[first]) > 0:
            raise PeerLost("the connection ended in the middle of a message")
        first = _advance(pending, first, num_bytes)


def block_buffers(memory: memoryview, block_bytes: int, blocks: Sequence[int]) -> list[memoryview]:
    """Where blocks lie in a pool's memory, neighbours joined up to a step."""
    return [
        memory[run.local * block_bytes : (run.local + run.num_blocks) * block_bytes]
        for run in runs(blocks, blocks, max_blocks=max(1, MAX_STEP_BYTES // block_bytes))
    ]


def _advance(buffers: list[memoryview], first: int, num_bytes: int) -> int:
    """Index of the first buffer that is not done after so many more bytes; that one is cut to what is missing."""
    while first < len(buffers) and num_bytes >= len(buffers[first]):
        num_bytes -= len(buffers[first])
        first += 1
    if num_bytes:
        buffers[first] = buffers[first][num_bytes:]
    return first
