"""Requests that a draining worker has handed off, and whose KV another worker may still pull from it."""

import asyncio


class HandOffs:
    """Handed-off requests, each until its KV is being pulled or its router needs it no more."""

    def __init__(self) -> None:
        self._sessions: dict[str, str] = {}  # session of the router, by request
        self._released = asyncio.Event()
        self._released.set()

    def add(self, request_id: str, session_id: str) -> None:
        """Record that a request of a router's session was handed off. Ids are those of the routers."""
        self._sessions[request_id] = session_id
        self._released.clear()

    def release(self, request_id: str) -> None:
        """Stop waiting for a pull of the request's KV; no-op for any other request."""
        self._sessions.pop(request_id, None)
        self._note()

    def release_session(self, session_id: str) -> None:
        """Stop waiting for pulls of a session's requests."""
        self._sessions = {each: session for each, session in self._sessions.items() if session != session_id}
        self._note()

    def clear(self) -> None:
        """Stop waiting for any pull."""
        self._sessions.clear()
        self._note()

    async def wait_released(self) -> None:
        """Return once no pull is expected."""
        await self._released.wait()

    def _note(self) -> None:
        if not self._sessions:
            self._released.set()
