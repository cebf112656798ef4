"""Server-sent events of one response. While the client lags, deltas merge into one event per completion.

Deltas with logprobs are encoded at once instead: encoding megabytes of them together would block the event loop for
seconds.
"""

from collections.abc import Callable

from baton.router.generation import ChoiceDelta, MergedDeltas
from baton.router.http.exchange import Exchange
from baton.router.resumption.resumption import OutputTally

NEXT_EVENT = b"\n\ndata: "


class EventIds:
    """Event ids of a resumable stream: the client's position after each event."""

    def __init__(self, tally: OutputTally) -> None:
        """`tally`: of the tokens that the client already has."""
        self._tally = tally

    def stamped(self, events: bytes, delta: ChoiceDelta) -> bytes:
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

    def __init__(self, exchange: Exchange, event: Callable[[ChoiceDelta], bytes]) -> None:
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

    async def add(self, delta: ChoiceDelta) -> None:
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
