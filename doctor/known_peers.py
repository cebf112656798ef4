"""The workers from which a worker may be asked to read: no caller can have it connect to any other address."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from baton.membership.registry.base import first_view
from baton.membership.registry.factory import open_registry

REGISTRY_TIMEOUT_S = 5.0


class UnknownPeer(Exception):
    """A caller named an address that is no peer's; the text says why."""


class KnownPeers:
    """Addresses of a worker's peers: those in its registry, or without one those that its routers were given."""

    def __init__(self, registry: str | None) -> None:
        """`registry`: its URL, None for a cluster of fixed addresses."""
        self._registry = registry
        self._named: Counter[str] = Counter()  # by how many watching routers

    @contextmanager
    def named(self, addresses: Sequence[str]) -> Iterator[None]:
        """A router that was given these workers watches this one, to the end of the block."""
        self._named.update(addresses)
        try:
            yield
        finally:
            self._named -= Counter(addresses)

    async def check(self, address: str) -> None:
        """Raises UnknownPeer unless a peer is at the address."""
        if self._registry is None:
            if address not in self._named:
                raise UnknownPeer(
                    "no registry, and no router that watches this worker was given a worker at this address"
                )
            return
        registry = open_registry(self._registry)
        try:
            view = await first_view(registry, REGISTRY_TIMEOUT_S)
        except TimeoutError as error:
            raise UnknownPeer(f"{registry.name} does not answer") from error
        if not view.is_listed:
            raise UnknownPeer(f"{registry.name} cannot be read: {view.error}")
        if address not in {member.address for member in view.members}:
            raise UnknownPeer(f"{registry.name} has no worker at this address")
