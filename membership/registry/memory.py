"""A registry within one process, and the one of a cluster with fixed addresses."""

import asyncio
from collections.abc import Callable, Sequence

from baton.membership.registry.base import Listener, Member, RegistryView


class MemoryRegistry:
    """Owns the members of one process's cluster; nothing is ever lost, so leases do not lapse."""

    def __init__(self, addresses: Sequence[str] = ()) -> None:
        """`addresses`: workers that are there always, host:port each."""
        self._fixed = tuple(dict.fromkeys(addresses))
        self.reports = MemoryReports()
        self._members: dict[str, Member] = {}  # by incarnation
        self._change = asyncio.Event()

    @property
    def name(self) -> str:
        """For people."""
        return "fixed addresses"

    def lease(self, member: Member, lease_s: float) -> "MemoryLease":
        """A place for a worker."""
        return MemoryLease(self, member)

    async def follow(self, listener: Listener) -> None:
        """Tells the members now and after each change, until cancelled."""
        while True:
            change = self._change
            listener(RegistryView(tuple(self._members.values()), self._fixed, is_listed=True))
            await change.wait()

    async def close(self) -> None:
        """Nothing is open."""

    def put(self, member: Member) -> None:
        """The member is there, as given."""
        self._members[member.incarnation] = member
        self._notify()

    def remove(self, incarnation: str) -> None:
        """The member is gone."""
        if self._members.pop(incarnation, None) is not None:
            self._notify()

    def _notify(self) -> None:
        change, self._change = self._change, asyncio.Event()
        change.set()


class MemoryLease:
    """One worker's place in a `MemoryRegistry`."""

    def __init__(self, registry: MemoryRegistry, member: Member) -> None:
        self._registry = registry
        self._member = member

    async def keep(self) -> None:
        """Registers the worker, until cancelled."""
        self._registry.put(self._member)
        await asyncio.Event().wait()  # never set: nothing has to be renewed

    def update(self, member: Member) -> None:
        """The worker changed."""
        self._member = member
        self._registry.put(member)

    async def withdraw(self) -> None:
        """Takes the worker out."""
        self._registry.remove(self._member.incarnation)


class MemoryReports:
    """Reports of the routers in one process; made when they are asked for."""

    def __init__(self) -> None:
        self._makers: dict[str, Callable[[], str]] = {}  # by router

    async def keep(self, router_id: str, make: Callable[[], str]) -> None:
        """The router's report can be read until this is cancelled."""
        self._makers[router_id] = make
        try:
            await asyncio.Event().wait()  # never set
        finally:
            del self._makers[router_id]

    async def read(self) -> tuple[str, ...]:
        """Those of all routers."""
        return tuple(make() for make in self._makers.values())
