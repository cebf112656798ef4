"""Remembered reasons why a transport does not reach a peer."""

import time
from dataclasses import dataclass

from baton.kvtransfer.base import PeerId

MAX_KNOWN = 4096  # refusals remembered; bounds the memory for peers that have ended
RETRY_S = 600.0  # before a transport that did not reach a peer is tried again


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a transport does not reach a peer, and when that was found out."""

    reason: str
    at_s: float


class Refusals:
    """Remembered reasons why a transport does not reach a peer, by transport and incarnation."""

    def __init__(self, retry_s: float | None = RETRY_S) -> None:
        """`retry_s`: seconds until a reason expires; None: never, since a restarted peer has a new incarnation."""
        self._retry_s = retry_s
        self._known: dict[tuple[str, PeerId], Refusal] = {}  # oldest first

    def note(self, transport: str, peer: PeerId, reason: str) -> None:
        """Record that the transport does not reach the peer; at most 4096 records are kept."""
        self._known.pop((transport, peer), None)
        self._known[transport, peer] = Refusal(reason, time.monotonic())
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def reason(self, transport: str, peer: PeerId) -> str | None:
        """Return why the transport does not reach the peer, or None if there is no reason or it has expired."""
        known = self._known.get((transport, peer))
        if known is None or (self._retry_s is not None and time.monotonic() - known.at_s > self._retry_s):
            return None
        return known.reason

    def drop(self, peer: PeerId) -> None:
        """Forget all reasons for a peer, so that every transport is tried again."""
        for transport, known_peer in list(self._known):
            if known_peer == peer:
                del self._known[transport, known_peer]
