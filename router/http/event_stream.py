"""The events of one answer; deltas that come while the client is behind merge into one event for each choice.

Deltas with logprobs are worded as they come instead: megabytes of them at once would hold the event loop for seconds.
"""

from collections.abc import Callable

from baton.router.generation import ChoiceDelta, MergedDeltas
from baton.router.http.exchange import Exchange
from baton.router.resumption.resumption import OutputTally

NEXT_EVENT = b"\n\ndata: "


class EventIds:
    """Counts the tokens of one answer, and puts the position behind them into its events."""

    def __init__(self, tally: OutputTally) -> None:
        """`tally`: of the tokens that the client has."""
        self._tally = tally

    def stamped(self, events: bytes, delta: ChoiceDelta) -> bytes:
        """Return the events for news of a choice with an id for the last of them, with which all has come.

        Return none for tokens that the client has: it has their choice's end too, if they are the last.
        """
        if not delta.token_ids:
            return b"" if delta.seen else events
        self._tally.add(delta.index, delta.token_ids)
        if not events:
            return events
        begin = events.rfind(NEXT_EVENT)  # within an event, JSON has no line break
        begin = 0 if begin < 0 else begin + 2
        return b"%bid: %b\n%b" % (events[:begin], str(self._tally.position()).encode(), events[begin:])


class EventStream:
    """Owns the deltas that the exchange has not taken yet."""

    def __init__(self, exchange: Exchange, event: Callable[[ChoiceDelta], bytes]) -> None:
        """`event` words a delta; empty if there is nothing to send."""
        self._exchange = exchange
        self._event = event
        self._worded: list[bytes] = []  # events in front of the merged deltas
        self._num_worded = 0  # bytes of them
        self._merged = MergedDeltas()

    @property
    def num_bytes(self) -> int:
        """Size of the deltas that wait."""
        return self._num_worded + self._merged.num_bytes

    def take(self) -> bytes:
        """Return the events of the deltas that wait."""
        worded, self._worded, self._num_worded = self._worded, [], 0
        return b"".join((*worded, *map(self._event, self._merged.take())))

    async def add(self, delta: ChoiceDelta) -> None:
        """Send a delta, or keep it while the client is behind. Raises ClientGone."""
        if delta.seen and not delta.token_ids:
            self._event(delta)  # empty, but the prompt's logprobs in the delta belong to choices that begin later
            return  # the client has all of it; what comes behind must not be merged into it
        if delta.prompt_logprobs and not (delta.token_ids or delta.finish_reason):
            self._event(delta)  # empty too; many of them at once would hold the event loop for long
            return
        if self._exchange.is_behind:
            self._merged.add(delta)
            if delta.logprobs:
                self._word_merged()
            self._exchange.count_unread()
        elif events := self._event(delta):
            await self._exchange.send_events(events)

    def _word_merged(self) -> None:
        for delta in self._merged.take():
            events = self._event(delta)
            self._worded.append(events)
            self._num_worded += len(events)
