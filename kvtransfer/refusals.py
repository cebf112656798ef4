"""Which transports do not reach which peers, so that it is not tried again at every connection."""

import time
from dataclasses import dataclass

from baton.kvtransfer.base import PeerId

MAX_KNOWN = 4096  # peers come and go
RETRY_S = 600.0  # what is in a transport's way may be gone by then


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why, and when it was found."""

    reason: str
    at_s: float


class Refusals:
    """What was found of peers' lives, by transport."""

    def __init__(self, retry_s: float | None = RETRY_S) -> None:
        """`retry_s`: how long it holds; None: for as long as the peer lives."""
        self._retry_s = retry_s
        self._known: dict[tuple[str, PeerId], Refusal] = {}  # the oldest first

    def note(self, transport: str, peer: PeerId, reason: str) -> None:
        """The transport does not reach the peer."""
        self._known.pop((transport, peer), None)
        self._known[transport, peer] = Refusal(reason, time.monotonic())
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def reason(self, transport: str, peer: PeerId) -> str | None:
        """Why it does not reach the peer; None if that is not known, or was too long ago."""
        known = self._known.get((transport, peer))
        if known is None or (self._retry_s is not None and time.monotonic() - known.at_s > self._retry_s):
            return None
        return known.reason

    def drop(self, peer: PeerId) -> None:
        """Everything is to be tried again."""
        for transport, who in list(self._known):
            if who == peer:
                del self._known[transport, who]
