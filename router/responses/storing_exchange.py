"""An exchange that stores the response before it ends."""

from collections.abc import Awaitable, Callable, Mapping

from baton.router.http.exchange import Exchange
from baton.router.http.forwarded_exchange import ForwardedExchange

STORED = "x-baton-stored"  # header of whole responses


class StoringExchange(ForwardedExchange):
    """Exchange that waits for `store` before it sends a whole response or the last event.

    A client that has received the id of a complete response can therefore continue it. The response of a client that
    has disconnected by then is not stored.
    """

    def __init__(self, exchange: Exchange, store: Callable[[], Awaitable[bool]]) -> None:
        """`store` returns whether the response was stored."""
        super().__init__(exchange)
        self._store = store

    async def respond(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Store the response and send it."""
        stored = str(await self._stored()).lower()
        await self._exchange.respond(status, body, {**(headers or {}), STORED: stored})

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Send events, after those in the source; the last ones after the response is stored. Raises ClientGone."""
        if last:
            await self._stored()
        await self._exchange.send_events(events, last)

    async def _stored(self) -> bool:
        return not self._exchange.disconnected and await self._store()
