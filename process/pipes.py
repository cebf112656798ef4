"""Pipes that an event loop reads."""

import asyncio
import os


async def read_pipe(fd: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Read from a pipe; the transport that is returned closes `fd`.

    uvloop closes the descriptor of a pipe, and then its file object. If that closed the descriptor again, it would be
    another thread's that has the same number by then.
    """
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    file = os.fdopen(fd, "rb", closefd=isinstance(loop, asyncio.BaseEventLoop))
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader, transport
