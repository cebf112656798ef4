"""The registry's interfaces: leases for workers, views for routers."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton.process.errors import PlainError
from baton.settings.names import Role

LONGEST_PAUSE_S = 2.0  # after this a Redis that restarted empty has all workers again


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One incarnation of a worker, as the registry stores it."""

    worker_id: str  # the same over restarts
    incarnation: str  # fresh at every start; the key
    role: Role
    address: str  # host:port of its gRPC server
    model: str  # name of the model that it serves
    fingerprint: str  # of model, weights and layout
    block_size: int  # tokens
    max_num_seqs: int  # in its batch
    draining: bool = False  # takes no new requests


@dataclass(frozen=True, slots=True)
class RegistryView:
    """The registry as a router sees it."""

    members: tuple[Member, ...] = ()  # as last listed
    fixed: tuple[str, ...] = ()  # addresses of workers that need no registry
    is_listed: bool = False  # the members were listed at least once
    num_malformed: int = 0  # entries that are not members, left out
    error: str | None = None  # why the registry is unreachable now; None: it is reachable


class LeaseLapsed(PlainError):
    """This process stalled for longer than its lease, so that routers gave it up: this incarnation must end."""


class RegistryLost(Exception):
    """The registry is unreachable now; the text has the reason."""


class PlaceTaken(PlainError):
    """Another process has taken this name; the text has which. Lookups no longer find this process."""


Listener = Callable[[RegistryView], None]


class Lease(Protocol):
    """One worker's entry in a registry; it lapses unless it is renewed."""

    async def keep(self) -> None:
        """Register the worker and renew its lease, even while the registry is lost, until cancelled.

        Raises LeaseLapsed if the worker itself was silent for so long that it lost its place.
        """
        ...

    def update(self, member: Member) -> None:
        """Replace the entry; `keep` publishes it at once."""
        ...

    async def withdraw(self) -> None:
        """Remove the entry, after `keep` has ended. If the registry is lost, the lease lapses by itself."""
        ...


class Reports(Protocol):
    """Reports of processes of one kind, as JSON."""

    async def keep(self, process_id: str, make: Callable[[], str]) -> None:
        """Publish a process's report again and again, even while the registry is lost, until cancelled."""
        ...

    async def publish(self, process_id: str, text: str) -> None:
        """Publish a report once; it lapses after a few seconds. Raises RegistryLost."""
        ...

    async def read(self) -> tuple[str, ...]:
        """Return all reports, none older than a few seconds. Raises RegistryLost."""
        ...


class NamedAddress(Protocol):
    """Address of a process of which a cluster has one, or one per name."""

    @property
    def name(self) -> str:
        """Name for logs, without passwords."""
        ...

    async def find(self) -> str | None:
        """Return its host:port; None if there is none. Raises RegistryLost."""
        ...

    async def keep(self, address: str, lease_s: float) -> None:
        """Publish this process's address until cancelled, even while the registry is lost. Raises PlaceTaken."""
        ...

    async def withdraw(self) -> None:
        """Remove the address, after `keep` has ended. If the registry is lost, the lease lapses by itself."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class SharedText(Protocol):
    """A text on which processes agree."""

    @property
    def name(self) -> str:
        """Name for logs, without passwords."""
        ...

    async def agree(self, proposed: str) -> str:
        """Return the text on which the processes agree: `proposed` if there is none yet. Raises RegistryLost."""
        ...

    async def close(self) -> None:
        """Close its connections."""
        ...


class Registry(Protocol):
    """Members of a cluster, and reports of its routers and autoscalers."""

    @property
    def name(self) -> str:
        """Name for logs, without passwords."""
        ...

    def lease(self, member: Member, lease_s: float) -> Lease:
        """Return an entry for a worker. It lapses if it is not renewed for `lease_s` seconds."""
        ...

    async def follow(self, listener: Listener) -> None:
        """Report the members now and soon after each change, and the loss of the registry; until cancelled."""
        ...

    @property
    def reports(self) -> Reports:
        """Reports of the routers about their traffic and workers (`router_report.py`)."""
        ...

    @property
    def plans(self) -> Reports:
        """Plans of autoscalers (`plan_report.py`), by application."""
        ...

    async def close(self) -> None:
        """Close its connections, after everything that uses them has ended."""
        ...


async def first_view(registry: Registry, timeout_s: float) -> RegistryView:
    """Return the registry's first view, and close the registry. Raises TimeoutError."""
    first: asyncio.Future[RegistryView] = asyncio.get_running_loop().create_future()

    def listen(view: RegistryView) -> None:
        if not first.done():
            first.set_result(view)

    following = asyncio.create_task(registry.follow(listen))
    try:
        async with asyncio.timeout(timeout_s):
            return await first
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await registry.close()
