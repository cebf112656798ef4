"""A worker's registration in the registry, from ready to shutdown."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from baton.membership.registry.base import Lease, Member
from baton.membership.registry.factory import open_registry
from baton.protos import worker_pb2
from baton.settings.names import Role
from baton.worker.drain import Drain, DrainState


@asynccontextmanager
async def registered(
    url: str | None, member: Member, lease_s: float, drain: Drain
) -> AsyncIterator[asyncio.Future[None]]:
    """Keep the worker registered, with its drain state; no-op without a registry URL.

    Yields a future that completes only if the registration fails. An unreachable registry is not a failure.
    """
    if url is None:
        yield asyncio.get_running_loop().create_future()
        return
    registry = open_registry(url)
    lease = registry.lease(member, lease_s)
    keeping = asyncio.create_task(_keep(lease, member, drain), name="lease")
    try:
        yield keeping
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)  # the caller has the failure from the future
        await lease.withdraw()
        await registry.close()


async def _keep(lease: Lease, member: Member, drain: Drain) -> None:
    async def update_draining() -> None:
        state = DrainState.SERVING
        while True:
            state = await drain.wait_change(state)
            lease.update(replace(member, draining=state is not DrainState.SERVING))

    updating = asyncio.create_task(update_draining())
    try:
        await lease.keep()
    finally:
        updating.cancel()


def member_of(description: worker_pb2.WorkerDescription, role: Role) -> Member:
    """Return a worker's registry entry."""
    return Member(
        worker_id=description.worker_id,
        incarnation=description.incarnation,
        role=role,
        address=description.address,
        model=description.model,
        fingerprint=description.fingerprint,
        block_size=description.block_size,
        max_num_seqs=description.max_num_seqs,
    )
