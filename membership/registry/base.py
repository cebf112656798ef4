"""What a registry is, to the workers that stand in it and to the routers that follow it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from baton.process.errors import PlainError
from baton.settings.worker_config import Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A worker in one of its lives, as the registry has it."""

    worker_id: str  # the same over restarts
    incarnation: str  # fresh at every start; the key
    role: Role
    address: str  # host:port of its gRPC server
    model: str  # name of the model that it serves
    fingerprint: str  # KV goes only between equal ones
    block_size: int  # tokens
    max_num_seqs: int  # most sequences in its batch
    draining: bool = False  # takes no new requests


@dataclass(frozen=True, slots=True)
class RegistryView:
    """What a router knows of the registry."""

    members: tuple[Member, ...] = ()  # as last listed
    fixed: tuple[str, ...] = ()  # addresses of workers that are there whatever is listed
    is_listed: bool = False  # the members were listed at least once
    num_malformed: int = 0  # entries that are no members and were left out
    error: str | None = None  # why the registry cannot be asked now; None: it can


class LeaseLapsed(PlainError):
    """This process stood still for so long that others took it for dead: it must not go on in this life."""


class RegistryLost(Exception):
    """The registry cannot be asked now; the text says why."""


class PlaceTaken(PlainError):
    """Another process has come under our name; the text says which. Nobody will find us any more."""


Listener = Callable[[RegistryView], None]


class Lease(Protocol):
    """One worker's place in a registry; it lapses unless it is kept."""

    async def keep(self) -> None:
        """Registers the worker and renews its lease, whatever becomes of the registry, until cancelled.

        Raises LeaseLapsed if the worker itself was silent for so long that it lost its place.
        """
        ...

    def update(self, member: Member) -> None:
        """The worker changed; `keep` tells it at once."""
        ...

    async def withdraw(self) -> None:
        """Takes the worker out, once `keep` has ended; without a registry the lease lapses by itself."""
        ...


class Reports(Protocol):
    """What each router tells of its traffic and its workers (membership/registry/router_report.py), as JSON."""

    async def keep(self, router_id: str, make: Callable[[], str]) -> None:
        """Publishes a router's report, and ever newer ones, whatever becomes of the registry; until cancelled."""
        ...

    async def read(self) -> tuple[str, ...]:
        """Those of all routers, none older than a few seconds. Raises RegistryLost."""
        ...


class NamedAddress(Protocol):
    """Where a process is that a cluster has one of, or one of each name."""

    @property
    def name(self) -> str:
        """For people; without passwords."""
        ...

    async def find(self) -> str | None:
        """Its host:port; None if none stands there. Raises RegistryLost."""
        ...

    async def keep(self, address: str, lease_s: float) -> None:
        """We are it, at this address, whatever becomes of the registry, until cancelled. Raises PlaceTaken."""
        ...

    async def withdraw(self) -> None:
        """Takes us out, once `keep` has ended; without a registry the lease lapses by itself."""
        ...

    async def close(self) -> None:
        """Ends its connections."""
        ...


class SharedText(Protocol):
    """A text on which processes agree."""

    @property
    def name(self) -> str:
        """For people; without passwords."""
        ...

    async def agree(self, proposed: str) -> str:
        """Return the text on which the processes agree: `proposed` if there is none yet. Raises RegistryLost."""
        ...

    async def close(self) -> None:
        """Ends its connections."""
        ...


class Registry(Protocol):
    """Holds the members of a cluster, and what its routers tell."""

    @property
    def name(self) -> str:
        """For people; without passwords."""
        ...

    def lease(self, member: Member, lease_s: float) -> Lease:
        """A place for a worker, that lapses when it was not renewed for `lease_s` seconds."""
        ...

    async def follow(self, listener: Listener) -> None:
        """Tells the members now and soon after each change, and when the registry is lost; until cancelled."""
        ...

    @property
    def reports(self) -> Reports:
        """What the routers tell."""
        ...

    async def close(self) -> None:
        """Ends its connections; whatever uses it has ended before."""
        ...


async def first_view(registry: Registry, timeout_s: float) -> RegistryView:
    """Return the registry's first view, and close the registry. Raises TimeoutError."""
    first: asyncio.Future[RegistryView] = asyncio.get_running_loop().create_future()

    def listen(view: RegistryView) -> None:
        if not first.done():
            first.set_result(view)

    following = asyncio.create_task(registry.follow(listen))
    try:
        return await asyncio.wait_for(first, timeout_s)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await registry.close()
