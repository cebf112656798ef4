"""Server-sent events of one response.

While the client lags, deltas merge into one event per completion. Deltas with logprobs are encoded at once instead:
encoding megabytes of them together would block the event loop for seconds.

A resumable stream has event ids, and comments in long silences, so the client can distinguish a slow router from a lost
one.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from baton.router.generation import CompletionDelta, MergedDeltas
from baton.router.http.exchange import ClientGone, EventSource, Exchange
from baton.router.http.forwarded_exchange import ForwardedExchange
from baton.router.http.headers import RESPONSE_HEADERS
from baton.router.openai.errors import error_event
from baton.router.resumption.resumption import OutputTally

NEXT_EVENT = b"\n\ndata: "


class EventIds:
    """Event ids of a resumable stream: the client's position after each event."""

    def __init__(self, tally: OutputTally) -> None:
        """`tally`: of the tokens that the client already has."""
        self._tally = tally

    def stamped(self, events: bytes, delta: CompletionDelta) -> bytes:
        """Return the events of a delta, with an id in the last one.

        Returns no events for tokens that the client already has; it then has the end of their completion, too.
        """
        if not delta.token_ids:
            return b"" if delta.seen else events
        self._tally.add(delta.index, delta.token_ids)
        if not events:
            return events
        begin = events.rfind(NEXT_EVENT)  # JSON has no line breaks within an event
        begin = 0 if begin < 0 else begin + 2
        return b"%bid: %b\n%b" % (events[:begin], str(self._tally.position()).encode(), events[begin:])


class EventStream:
    """Deltas that wait for a lagging client."""

    def __init__(self, exchange: Exchange, event: Callable[[CompletionDelta], bytes]) -> None:
        """`event` encodes a delta; empty if there is nothing to send."""
        self._exchange = exchange
        self._event = event
        self._encoded: list[bytes] = []  # events in front of the merged deltas
        self._num_encoded = 0  # bytes in `_encoded`
        self._merged = MergedDeltas()

    @property
    def num_bytes(self) -> int:
        """Approximate size of the waiting deltas."""
        return self._num_encoded + self._merged.num_bytes

    def take(self) -> bytes:
        """Remove the waiting deltas and return their events."""
        encoded, self._encoded, self._num_encoded = self._encoded, [], 0
        return b"".join((*encoded, *map(self._event, self._merged.take())))

    async def add(self, delta: CompletionDelta) -> None:
        """Send a delta, or keep it while the client lags. Raises ClientGone."""
        if delta.seen and not delta.token_ids:
            self._event(delta)  # returns nothing, but keeps the prompt logprobs for completions that begin later
            return  # the client has all of it; later deltas must not be merged into it
        if delta.prompt_logprobs and not (delta.token_ids or delta.finish_reason):
            self._event(delta)  # returns nothing; encoding many of them at once would block the event loop
            return
        if self._exchange.is_behind:
            self._merged.add(delta)
            if delta.logprobs:
                self._encode_merged()
            self._exchange.count_unread()
        elif events := self._event(delta):
            await self._exchange.send_events(events)

    def _encode_merged(self) -> None:
        for delta in self._merged.take():
            events = self._event(delta)
            self._encoded.append(events)
            self._num_encoded += len(events)


COMMENT = b": waiting\n\n"
COMMENT_INTERVAL_S = 1.0  # silence before a comment


@asynccontextmanager
async def kept_alive(
    exchange: Exchange, stream: bool, interval_s: float = COMMENT_INTERVAL_S
) -> AsyncIterator[Exchange]:
    """Yield the exchange. A resumable stream is wrapped so that it is never silent for longer than the interval.

    An error after the first comment is sent as an event, since the response headers have been sent.
    """
    if exchange.resumption is None or not stream:
        yield exchange
        return
    alive = KeptAliveExchange(exchange, interval_s)
    comments = asyncio.create_task(alive.run())
    try:
        yield alive
    except ClientGone:
        raise
    except Exception as error:
        if not alive.started or alive.is_over:
            raise
        if alive.trace is not None:
            alive.trace.note_failure(error)
        await alive.send_events(error_event(error), last=True)
    finally:
        comments.cancel()
        await asyncio.gather(comments, return_exceptions=True)


class KeptAliveExchange(ForwardedExchange):
    """Exchange whose event stream begins with its first comment or event, whichever is first."""

    def __init__(self, exchange: Exchange, interval_s: float) -> None:
        super().__init__(exchange)
        self._interval_s = interval_s
        self._last_s = asyncio.get_running_loop().time()
        self._source: EventSource | None = None  # set by `begin_events`
        self.is_over = False  # the last event was sent

    async def begin_events(self, headers: Mapping[str, str], source: EventSource) -> None:
        """Send the headers of the event stream, unless a comment has sent them."""
        self._source = source
        if not self._exchange.started:
            await self._exchange.begin_events(headers, self)

    async def send_events(self, events: bytes, last: bool = False) -> None:
        """Send events, after those in the source. Raises ClientGone."""
        self.is_over = last
        self._last_s = asyncio.get_running_loop().time()
        await self._exchange.send_events(events, last)

    @property
    def num_bytes(self) -> int:
        """Size of the events in the source."""
        return 0 if self._source is None else self._source.num_bytes

    def take(self) -> bytes:
        """Remove and return the events in the source."""
        return b"" if self._source is None else self._source.take()

    async def run(self) -> None:
        """Send comments until cancelled, the last event is sent, or the client disconnects."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._last_s + self._interval_s - loop.time())
            if self.is_over:
                return
            if self.is_behind:  # the client still reads earlier output
                self._last_s = loop.time()
            elif loop.time() >= self._last_s + self._interval_s:
                try:
                    if not self.started:
                        await self._exchange.begin_events(RESPONSE_HEADERS, self)
                    await self.send_events(COMMENT)
                except ClientGone:
                    return
