"""Ids of a resumable stream's events: each says how many output tokens the client has with it."""

from baton.router.generation import ChoiceDelta
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
