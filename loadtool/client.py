"""HTTP client for loads: prepared requests over keep-alive connections, without a limit of connections."""

import asyncio
import ssl
from time import perf_counter

from baton.loadtool.connection import Connection, Reader

KEEP_IDLE_S = 2.0  # servers close idle connections, some after 5 s; a request must not race with that


class HttpClient:
    """Owner of the connections to one server."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> None:
        self._host = host
        self._port = port
        self._tls = tls
        self._timeout_s = timeout_s
        self._idle: list[Connection] = []  # most recently used last

    async def ask(self, payload: bytes, reader: Reader) -> float:
        """Send a request, read its response, and return the time of sending, after a new connection was opened.

        Raises OSError or TimeoutError if the response is incomplete.
        """
        async with asyncio.timeout(self._timeout_s):
            connection = await self._take()
            try:
                sent_s = await connection.ask(payload, reader)
            except BaseException:
                connection.close()
                raise
        if connection.is_open:
            connection.idle_since_s = perf_counter()
            self._idle.append(connection)
        else:
            connection.close()
        return sent_s

    def close(self) -> None:
        """Close the connections."""
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and perf_counter() - connection.idle_since_s <= KEEP_IDLE_S:
                return connection
            connection.close()
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Connection, self._host, self._port, ssl=self._tls))[1]
