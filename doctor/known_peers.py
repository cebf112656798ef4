"""The peers that a worker may connect to for a probe, so that a caller cannot make it connect anywhere else."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from baton.membership.registry.base import first_view
from baton.membership.registry.factory import open_registry

REGISTRY_TIMEOUT_S = 5.0


class UnknownPeer(Exception):
    """An address that is not a peer's; the text gives the reason."""


class KnownPeers:
    """Addresses of a worker's peers: from its registry, or without one from the routers that watch it."""

    def __init__(self, registry: str | None) -> None:
        """registry: URL; None for a cluster with fixed addresses."""
        self._registry = registry
        self._named: Counter[str] = Counter()  # address -> number of watching routers

    @contextmanager
    def named(self, addresses: Sequence[str]) -> Iterator[None]:
        """Count these addresses as peers during a `with` block, while a router with these workers watches this one."""
        self._named.update(addresses)
        try:
            yield
        finally:
            self._named -= Counter(addresses)

    async def check(self, address: str) -> None:
        """Raise UnknownPeer unless the address is a peer's."""
        if self._registry is None:
            if address not in self._named:
                raise UnknownPeer(
                    "there is no registry, and no router that watches this worker has a worker at this address"
                )
            return
        registry = open_registry(self._registry)
        try:
            view = await first_view(registry, REGISTRY_TIMEOUT_S)
        except TimeoutError as error:
            raise UnknownPeer(f"{registry.name} does not respond") from error
        if not view.is_listed:
            raise UnknownPeer(f"{registry.name} cannot be read: {view.error}")
        if address not in {member.address for member in view.members}:
            raise UnknownPeer(f"{registry.name} has no worker at this address")
