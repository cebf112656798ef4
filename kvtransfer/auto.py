"""The choice of a transport for each peer."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from baton.kvtransfer.base import KVTransport, Landed, PeerId, PoolDescription, TransportChoice, ignore_landed
from baton.kvtransfer.errors import PeerLost, TransportUnavailable
from baton.kvtransfer.quarantine import Quarantine

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


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """A transport and its name."""

    name: str
    transport: KVTransport
    costs: str = ""  # set for a last resort: what it costs, for the warning when it is chosen


@dataclass(frozen=True, slots=True)
class Unavailable:
    """A backend that does not work on this host, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Connected:
    """The backend in use for a peer, and why."""

    backend: Backend
    choice: TransportChoice


class AutoTransport:
    """Several backends that serve one pool; each peer is read over the first backend that reaches it.

    The backends share one quarantine. Only TransportUnavailable leads to the next backend: a peer that refuses or has
    ended would do the same over any other. A backend that did not reach a peer is not tried again for ten minutes,
    unless no other backend reaches it.
    """

    def __init__(self, backends: Sequence[Backend | Unavailable], quarantine: Quarantine) -> None:
        """`backends`: best first."""
        self.quarantine = quarantine
        self._backends = list(backends)
        self._dropped: list[Backend] = []  # could not register the pool; still closed by `close`
        self._connected: dict[PeerId, Connected] = {}
        self._refusals = Refusals()
        for backend in backends:
            if isinstance(backend, Unavailable):
                logger.info("KV transport %s is not used: %s", backend.name, backend.reason)

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """The backend in use for each connected peer, and why it was chosen."""
        return {
            peer: connected.choice
            for peer, connected in self._connected.items()
            if peer in connected.backend.transport.choices
        }

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Register the pool with every backend; a backend that cannot is not used any more.

        Raises TransportUnavailable if no backend can.
        """
        descriptions: list[PoolDescription] = []
        for index, backend in enumerate(self._backends):
            if isinstance(backend, Backend):
                try:
                    descriptions.append(backend.transport.register_pool(pool))
                except TransportUnavailable as error:
                    logger.info("KV transport %s is not used: %s", backend.name, error)
                    self._backends[index] = Unavailable(backend.name, str(error))
                    self._dropped.append(backend)
        if not descriptions:
            raise TransportUnavailable(f"no KV transport works here: {self._backends}")
        endpoints = {name: value for description in descriptions for name, value in description.endpoints.items()}
        return replace(descriptions[0], endpoints=endpoints)

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Connect over the first backend that reaches the peer; see KVTransport."""
        peer_id = PeerId(peer.incarnation)
        choices = self.choices
        if peer_id in choices:
            return peer_id
        self._connected = {known: connected for known, connected in self._connected.items() if known in choices}
        refused: dict[str, str] = {}  # reason by backend, of the better ones
        for backend in self._backends:
            reason = await self._refusal(backend, peer)
            if reason is not None:
                refused[backend.name] = reason
                continue
            assert isinstance(backend, Backend)
            choice = backend.transport.choices.get(peer_id)
            if choice is None:
                raise PeerLost(f"peer {peer_id} ended as soon as it was connected")
            self._choose(peer_id, backend, choice, refused)
            return peer_id
        self._refusals.drop(peer_id)
        raise TransportUnavailable(f"no KV transport reaches peer {peer_id}: {'; '.join(_in_words(refused))}")

    async def _refusal(self, backend: Backend | Unavailable, peer: PoolDescription) -> str | None:
        """Connect over one backend; return why it does not reach the peer, or None if it does."""
        if isinstance(backend, Unavailable):
            return backend.reason
        known = self._refusals.reason(backend.name, PeerId(peer.incarnation))
        if known is not None:
            return known
        try:
            await backend.transport.connect(peer)
        except TransportUnavailable as error:
            self._refusals.note(backend.name, PeerId(peer.incarnation), str(error))
            return str(error)
        return None

    def _choose(self, peer: PeerId, backend: Backend, choice: TransportChoice, refused: Mapping[str, str]) -> None:
        reason = "; ".join([choice.reason, *_in_words(refused)])
        self._connected[peer] = Connected(backend, TransportChoice(choice.transport, reason))
        _tell(peer, backend, choice.transport, reason)

    async def read(
        self,
        peer: PeerId,
        remote: Sequence[int],
        local: Sequence[int],
        deadline_s: float,
        landed: Landed = ignore_landed,
    ) -> None:
        """Read over the backend that was chosen for the peer; see KVTransport."""
        if peer not in self._connected:
            raise PeerLost(f"peer {peer} is not connected")
        await self._connected[peer].backend.transport.read(peer, remote, local, deadline_s, landed)

    def forget(self, peer: PeerId) -> None:
        """Drop the connection to the peer; see KVTransport."""
        self._connected.pop(peer, None)
        for backend in self._backends:  # any of them may be connecting right now
            if isinstance(backend, Backend):
                backend.transport.forget(peer)

    async def close(self) -> None:
        """Close every backend; see KVTransport."""
        for backend in [*self._backends, *self._dropped]:
            if isinstance(backend, Backend):
                await backend.transport.close()
        self._connected.clear()


def _in_words(refused: Mapping[str, str]) -> list[str]:
    return [f"{name}: {reason}" for name, reason in refused.items()]


def _tell(peer: PeerId, backend: Backend, transport: str, reason: str) -> None:
    if backend.costs:
        last_resort = "KV from peer %s is read over %s as a last resort, %s: %s"
        logger.warning(last_resort, peer, transport, backend.costs, reason)
    else:
        logger.info("KV from peer %s is read over %s: %s", peer, transport, reason)
