"""Chooses a transport for each peer."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from kvtransfer.base import KVTransport, Landed, PeerId, PoolDescription, TransportChoice, nobody
from kvtransfer.errors import PeerLost, TransportUnavailable
from kvtransfer.quarantine import Quarantine

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Backend:
    """A transport and its name."""

    name: str
    transport: KVTransport
    costs: str = ""  # of a last resort: what it costs, for a warning


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
    """Serves the pool over several backends and reads from each peer over the first that reaches it.

    The backends share one quarantine. Only TransportUnavailable leads to the next backend: a peer that refuses or is
    gone would do the same over any other.
    """

    def __init__(self, backends: Sequence[Backend | Unavailable], quarantine: Quarantine) -> None:
        """`backends`: best first."""
        self.quarantine = quarantine
        self._backends = list(backends)
        self._connected: dict[PeerId, Connected] = {}
        for backend in backends:
            if isinstance(backend, Unavailable):
                logger.info("KV transport %s is not used: %s", backend.name, backend.reason)

    @property
    def choices(self) -> Mapping[PeerId, TransportChoice]:
        """The backend in use for each peer, and why that one."""
        return {
            peer: connected.choice
            for peer, connected in self._connected.items()
            if peer in connected.backend.transport.choices
        }

    def register_pool(self, pool: Tensor) -> PoolDescription:
        """Registers with every backend; one that cannot is left out from now on."""
        descriptions: list[PoolDescription] = []
        for index, backend in enumerate(self._backends):
            if isinstance(backend, Backend):
                try:
                    descriptions.append(backend.transport.register_pool(pool))
                except TransportUnavailable as error:
                    logger.info("KV transport %s is not used: %s", backend.name, error)
                    self._backends[index] = Unavailable(backend.name, str(error))
        if not descriptions:
            raise TransportUnavailable(f"no KV transport works here: {self._backends}")
        endpoints = {name: value for description in descriptions for name, value in description.endpoints.items()}
        return replace(descriptions[0], endpoints=endpoints)

    async def connect(self, peer: PoolDescription) -> PeerId:
        """Tries the backends in order; see KVTransport."""
        peer_id = PeerId(peer.incarnation)
        choices = self.choices
        if peer_id in choices:
            return peer_id
        self._connected = {known: connected for known, connected in self._connected.items() if known in choices}
        reasons: list[str] = []  # why the better ones were not chosen
        for backend in self._backends:
            if isinstance(backend, Unavailable):
                reasons.append(f"{backend.name}: {backend.reason}")
                continue
            try:
                await backend.transport.connect(peer)
            except TransportUnavailable as error:
                reasons.append(f"{backend.name}: {error}")
                continue
            choice = backend.transport.choices.get(peer_id)
            if choice is None:
                raise PeerLost(f"peer {peer_id} ended as soon as it was connected")
            reason = "; ".join([choice.reason, *reasons])
            self._connected[peer_id] = Connected(backend, TransportChoice(choice.transport, reason))
            _tell(peer_id, backend, choice.transport, reason)
            return peer_id
        raise TransportUnavailable(f"no KV transport reaches peer {peer_id}: {'; '.join(reasons)}")

    async def read(
        self,
        peer: PeerId,
        remote: Sequence[int],
        local: Sequence[int],
        deadline_s: float,
        landed: Landed = nobody,
    ) -> None:
        """Reads over the backend that was chosen for the peer; see KVTransport."""
        if peer not in self._connected:
            raise PeerLost(f"peer {peer} is not connected")
        await self._connected[peer].backend.transport.read(peer, remote, local, deadline_s, landed)

    def forget(self, peer: PeerId) -> None:
        """Drops the peer; see KVTransport."""
        self._connected.pop(peer, None)
        for backend in self._backends:  # one of them may be connecting just now
            if isinstance(backend, Backend):
                backend.transport.forget(peer)

    async def close(self) -> None:
        """Closes every backend; see KVTransport."""
        for backend in self._backends:
            if isinstance(backend, Backend):
                await backend.transport.close()
        self._connected.clear()


def _tell(peer: PeerId, backend: Backend, transport: str, reason: str) -> None:
    if backend.costs:
        logger.warning("KV from peer %s comes over %s as a last resort, %s: %s", peer, transport, backend.costs, reason)
    else:
        logger.info("KV from peer %s comes over %s: %s", peer, transport, reason)
