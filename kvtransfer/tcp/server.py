"""The serving half of a TCP connection, with one thread per connection."""

import asyncio
import logging
import socket
from contextlib import suppress
from functools import partial

from baton.kvtransfer.errors import TransferError
from baton.kvtransfer.handshake import Caller
from baton.kvtransfer.local_pool import LocalPool
from baton.kvtransfer.tcp import frames as tcp_frames
from baton.kvtransfer.tcp.connection import keep_alive
from baton.kvtransfer.threads import run_in_thread
from baton.kvtransfer.units import unit_bytes_of

logger = logging.getLogger(__name__)


async def serve_reader(pool: LocalPool, sock: socket.socket, caller: Caller) -> None:
    """Serve an admitted caller until it closes the connection."""
    unit_bytes = unit_bytes_of(pool.block_bytes, caller.block_bytes)
    keep_alive(sock)
    sock.setblocking(True)
    serving = run_in_thread("baton-kv-tcp-serve", partial(serve_units, sock, pool, unit_bytes))
    try:
        await asyncio.shield(serving)
    finally:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        await serving  # the listener closes the socket next, so its thread must have ended


def serve_units(sock: socket.socket, pool: LocalPool, unit_bytes: int) -> None:
    """Respond to requests until the caller closes the connection or sends an invalid one; blocks."""
    memory = pool.memory()
    per_block = pool.block_bytes // unit_bytes
    try:
        while (units := tcp_frames.receive_request(sock)) is not None:
            wrong = next((unit for unit in units if unit >= pool.num_blocks * per_block), None)
            if wrong is None:
                buffers = tcp_frames.unit_buffers(memory, unit_bytes, units)
                tcp_frames.send_response(sock, tcp_frames.STATUS_UNITS, buffers)
            else:
                text = f"block {wrong // per_block} is not one of the pool's {pool.num_blocks}".encode()
                tcp_frames.send_response(sock, tcp_frames.STATUS_REFUSED, [memoryview(text)])
    except TransferError as error:
        logger.warning("closed a connection to the KV pool: %s", error)
    except OSError as error:
        logger.info("a reader of the KV pool disconnected: %s", error)
