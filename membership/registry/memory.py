"""In-memory registry, also used for clusters with fixed addresses."""

import asyncio
from collections.abc import Callable, Sequence

from baton.membership.registry.base import Listener, Member, RegistryView


class MemoryRegistry:
    """Members of a cluster within one process. Leases never lapse."""

    def __init__(self, addresses: Sequence[str] = ()) -> None:
        """`addresses`: host:port of workers that are always listed."""
        self._fixed = tuple(dict.fromkeys(addresses))
        self.reports = MemoryReports()
        self.plans = MemoryReports()
        self._members: dict[str, Member] = {}  # by incarnation
        self._change = asyncio.Event()

    @property
    def name(self) -> str:
        """Name for logs."""
        return "fixed addresses"

    def lease(self, member: Member, lease_s: float) -> "MemoryLease":
        """Return an entry for a worker."""
        return MemoryLease(self, member)

    async def follow(self, listener: Listener) -> None:
        """Report the members now and after each change, until cancelled."""
        while True:
            change = self._change
            listener(RegistryView(tuple(self._members.values()), self._fixed, is_listed=True))
            await change.wait()

    async def close(self) -> None:
        """No-op: there are no connections."""

    def put(self, member: Member) -> None:
        """Add or replace a member."""
        self._members[member.incarnation] = member
        self._notify()

    def remove(self, incarnation: str) -> None:
        """Remove a member."""
        if self._members.pop(incarnation, None) is not None:
            self._notify()

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()


class MemoryLease:
    """One worker's entry in a `MemoryRegistry`."""

    def __init__(self, registry: MemoryRegistry, member: Member) -> None:
        self._registry = registry
        self._member = member

    async def keep(self) -> None:
        """Register the worker until cancelled."""
        self._registry.put(self._member)
        await asyncio.Event().wait()  # never set: there is no lease to renew

    def update(self, member: Member) -> None:
        """Replace the entry."""
        self._member = member
        self._registry.put(member)

    async def withdraw(self) -> None:
        """Remove the entry."""
        self._registry.remove(self._member.incarnation)


class MemoryReports:
    """Reports of one kind within one process, made on demand."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], str]] = {}  # by the process's id

    async def keep(self, process_id: str, make: Callable[[], str]) -> None:
        """Publish a report until cancelled."""
        self._makers[process_id] = make
        try:
            await asyncio.Event().wait()  # never set
        finally:
            del self._makers[process_id]

    async def publish(self, process_id: str, text: str) -> None:
        """Publish a report, which never lapses."""
        self._makers[process_id] = lambda: text

    async def read(self) -> tuple[str, ...]:
        """Return all reports."""
        return tuple(make() for make in self._makers.values())
