"""Members and listeners for tests of registries."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from baton.membership.registry.base import Lease, Member, Registry, RegistryView

DEADLINE_S = 60.0


def make_member(worker_id: str = "decode-0", **changes: object) -> Member:
    """Return a member with default values, except for the changes."""
    values: dict[str, object] = {
        "worker_id": worker_id, "incarnation": f"{worker_id}/1", "role": "decode", "address": f"{worker_id}:7000",
        "model": "tiny", "fingerprint": "fingerprint", "block_size": 16, "max_num_seqs": 64,
    }  # fmt: skip
    return Member(**{**values, **changes})  # type: ignore[arg-type]  # a test's own choice of values


class Views:
    """The views that a follower of a registry has received."""

    def __init__(self) -> None:
        self.last = RegistryView()
        self.all: list[RegistryView] = []
        self._changed = asyncio.Event()

    def __call__(self, view: RegistryView) -> None:
        self.last = view
        self.all.append(view)
        self._changed.set()

    async def until(self, condition: Callable[[RegistryView], bool]) -> RegistryView:
        """Return the last view once it meets the condition. Raises TimeoutError if none does."""
        async with asyncio.timeout(DEADLINE_S):
            while not condition(self.last):
                self._changed.clear()
                await self._changed.wait()
        return self.last

    async def until_members(self, *members: Member) -> None:
        """Return once exactly these members are listed and the registry is connected."""
        await self.until(lambda view: view.members == members and view.error is None)


@asynccontextmanager
async def following(registry: Registry) -> AsyncIterator[Views]:
    """Follow the registry until the end of the context."""
    views = Views()
    task = asyncio.create_task(registry.follow(views))
    try:
        yield views
    finally:
        assert not task.done(), task
        await _cancel(task)


@asynccontextmanager
async def kept(lease: Lease) -> AsyncIterator[Lease]:
    """Keep a lease; withdraw it at the end of the context."""
    task = asyncio.create_task(lease.keep())
    try:
        yield lease
    finally:
        assert not task.done(), task
        await _cancel(task)
        await lease.withdraw()


@asynccontextmanager
async def reporting(registry: Registry, router_id: str, make: Callable[[], str]) -> AsyncIterator[None]:
    """Keep a router's report until the end of the context."""
    task = asyncio.create_task(registry.reports.keep(router_id, make))
    await asyncio.sleep(0)
    try:
        yield
    finally:
        assert not task.done(), task
        await _cancel(task)


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait((task,))
