"""The router's HTTP server: uvicorn, over TLS if there is a certificate."""

import asyncio
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import uvicorn

from baton.router.http.app import HttpApp
from baton.router.http.certificate import Certificate
from baton.router.http.parse_turns import ParseTurns
from baton.router.http.post_protocol import LINGER_S, PostProtocol
from baton.router.http.shared_socket import accept_waiting

STOP_GRACE_S = 1.0
KEEP_ALIVE_S = 30  # timeout of an idle connection, and of a TLS handshake
SHUTDOWN_S = 3600.0  # asyncio's limit for the rest of a response at close; `StallWatch` has a stricter one
BODY_TIMEOUT_S = 60.0
BACKLOG = 2048
POLL_S = 0.01


class HttpServer(uvicorn.Server):
    """A uvicorn server without signal handlers that reports when it listens and stops without losing requests."""

    def __init__(
        self, app: HttpApp, certificate: Certificate | None = None, body_timeout_s: float = BODY_TIMEOUT_S
    ) -> None:
        """`certificate`: for HTTPS; None: plain HTTP. `body_timeout_s`: maximum time to receive a request."""
        self.listening = asyncio.Event()
        self._leaving = asyncio.Event()
        self._posts = {path.encode(): route for path, route in app.posts.items()}
        self._cross_origin = app.cross_origin
        self._body_timeout_s = body_timeout_s
        self._unread = app.unread
        self._turns = ParseTurns(time.monotonic)
        self._begun: WeakKeyDictionary[PostProtocol, float] = WeakKeyDictionary()  # start time, before the handshake
        self._tls: dict[str, Any] = {}
        if certificate is not None:
            self._tls = {
                "ssl": certificate.server_context(),
                "ssl_handshake_timeout": KEEP_ALIVE_S,
                "ssl_shutdown_timeout": SHUTDOWN_S,
            }
        config = uvicorn.Config(
            app,
            http=PostProtocol,
            loop="none",  # the running loop
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,  # the forwarded client address is not used
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=int(STOP_GRACE_S),
        )
        super().__init__(config)

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no signal handlers: the process has its own."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen. Replaces uvicorn's method, which does not limit the time of handshakes."""
        listen = asyncio.get_running_loop().create_server
        self.servers = [await listen(self._begin, sock=each, backlog=BACKLOG, **self._tls) for each in sockets or ()]
        self.started = True
        self.listening.set()

    async def leave(self, listener: socket.socket, timeout_s: float) -> None:
        """Accept no more connections, and wait until the existing ones have ended or the timeout expires.

        Each connected client still gets a response, after which its connection ends.
        """
        self._leaving.set()
        waiting = accept_waiting(listener)
        for server in self.servers:
            server.close()
        for connection in self.server_state.connections:
            if isinstance(connection, PostProtocol):
                connection.leave()
        connect = asyncio.get_running_loop().connect_accepted_socket
        accepted = asyncio.gather(
            *(connect(self._begin, each, **self._tls) for each in waiting),
            return_exceptions=True,  # some clients may have disconnected
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while True:
                    await asyncio.sleep(POLL_S)  # lets the event loop set up accepted connections
                    if not self.server_state.connections and not self._has_handshake():
                        break
        accepted.cancel()
        await asyncio.gather(accepted, return_exceptions=True)

    def _has_handshake(self) -> bool:
        """Return whether a TLS handshake is in progress; ignores those that take longer than `LINGER_S`."""
        since_s = time.monotonic() - LINGER_S
        return any(begun_s > since_s and connection.transport is None for connection, begun_s in self._begun.items())

    def _begin(self) -> PostProtocol:
        """Return the protocol of a new connection; over TLS, before its handshake."""
        connection = PostProtocol(
            config=self.config,
            server_state=self.server_state,
            app_state={},
            posts=self._posts,
            cross_origin=self._cross_origin,
            unread=self._unread,
            leaving=self._leaving,
            body_timeout_s=self._body_timeout_s,
            turns=self._turns,
        )
        self._begun[connection] = time.monotonic()
        return connection
