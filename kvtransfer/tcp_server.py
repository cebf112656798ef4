"""The serving half of a TCP connection, in a thread of its own."""

import asyncio
import logging
import socket
from contextlib import suppress
from functools import partial

from kvtransfer import tcp_frames
from kvtransfer.errors import TransferError
from kvtransfer.local_pool import LocalPool
from kvtransfer.tcp_connection import keep_alive
from kvtransfer.threads import run_in_thread

logger = logging.getLogger(__name__)


async def serve_reader(pool: LocalPool, sock: socket.socket) -> None:
    """Serves an admitted caller until it closes."""
    keep_alive(sock)
    sock.setblocking(True)
    serving = run_in_thread("baton-kv-tcp-serve", partial(serve_blocks, sock, pool))
    try:
        await asyncio.shield(serving)
    finally:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        await serving  # the socket may be closed only when its thread has ended


def serve_blocks(sock: socket.socket, pool: LocalPool) -> None:
    """Answers requests for blocks until the caller closes or sends what is no request."""
    memory = pool.memory()
    try:
        while (blocks := tcp_frames.receive_request(sock)) is not None:
            wrong = next((block for block in blocks if block >= pool.num_blocks), None)
            if wrong is None:
                buffers = tcp_frames.block_buffers(memory, pool.block_bytes, blocks)
                tcp_frames.send_response(sock, tcp_frames.STATUS_BLOCKS, buffers)
            else:
                text = f"block {wrong} is not one of the pool's {pool.num_blocks}".encode()
                tcp_frames.send_response(sock, tcp_frames.STATUS_REFUSED, [memoryview(text)])
    except TransferError as error:
        logger.warning("closed a connection to the KV pool: %s", error)
    except OSError as error:
        logger.info("a reader of the KV pool went away: %s", error)
