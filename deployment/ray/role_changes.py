"""Changes of role that the policy carries out: workers that leave one pool for the other without a restart.

Serve counts a replica in the deployment that started it, whatever its role. So the sizes of the deployments differ from
those of the pools by the *offset*: the prefill deployment's workers that decode, minus the decode deployment's workers
that prefill.

1. The planner wants flips. Workers of the pool that shrinks change their role: first those that return to the role of
   their deployment, then those with the fewest requests.
2. From then on a worker counts for its new pool. Neither deployment changes its size.
3. The change has ended when routers report the worker in its new role.
4. If it fails, the worker counts for its former pool again. For a while the planner has no flips, and starts and stops
   replicas instead.
"""

import logging
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, replace

import grpc

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.ray.observed_pools import ObservedPools, offset_of
from baton.deployment.ray.pool_progress import PoolProgress
from baton.membership.registry.router_report import WorkerReport
from baton.protos.worker_pb2 import ChangeRoleRequest, WorkerRole
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.rpc.tls import MutualTls, Plaintext, Security, TlsFiles
from baton.settings.names import Role
from baton.settings.values import OptionError

logger = logging.getLogger("ray.serve.baton")  # child of the logger whose file Serve shows

PAUSE_S = 300.0  # after a failure
REPORT_S = 10.0  # from a change's response to the routers' reports of it


class ChangeFailed(Exception):
    """A worker did not change its role; the text says why."""


async def change_role(tls: TlsFiles | None, address: str, role: Role, timeout_s: float) -> None:
    """Have the worker at `address` drain and change its role; return once it is ready. Raises ChangeFailed."""
    request = ChangeRoleRequest(role=WorkerRole.Value(f"WORKER_ROLE_{role.upper()}"))
    try:
        security: Security = Plaintext() if tls is None else MutualTls(tls)
        async with security.channel(address) as channel:
            await WorkerStub(channel).ChangeRole(request, timeout=timeout_s)
    except OptionError as error:
        raise ChangeFailed(str(error)) from error
    except grpc.aio.AioRpcError as error:
        raise ChangeFailed(f"{error.code().name}: {error.details()}") from error


@dataclass(slots=True)
class RoleChange:
    """A worker's change of role, from the call until routers report it."""

    worker: WorkerReport  # before it
    role: Role  # after it
    call: "Future[None]"
    returned_s: float | None = None


Call = Callable[[WorkerReport, Role], "Future[None]"]


class RoleChanges:
    """The changes in progress. Times are on the clock of the observations."""

    def __init__(self, call: Call) -> None:
        """`call` begins the change of a worker's role without blocking."""
        self.arrived: tuple[WorkerReport, ...] = ()  # workers whose change ended with the last observation
        self._call = call
        self._changes: dict[str, RoleChange] = {}  # by worker id, which Serve never reuses
        self._paused_until_s = float("-inf")

    def may_begin(self, now_s: float) -> bool:
        """Whether no change has failed for a while."""
        return now_s >= self._paused_until_s

    def update(self, observed: ObservedPools, now_s: float) -> ObservedPools:
        """End the changes that are done or have failed; return the pools with the workers that leave as draining."""
        ready = [each for pool in observed.ready.both() for each in pool]
        self.arrived = tuple(each for each in ready if self._is_done(each))
        for worker in self.arrived:
            del self._changes[worker.worker_id]
        for name, change in list(self._changes.items()):
            if change.call.done() and not self._is_pending(change, now_s):
                del self._changes[name]
        leaving = observed.workers.map(
            lambda pool: tuple(replace(each, draining=True) if self._is_leaving(each) else each for each in pool)
        )
        return replace(observed, workers=leaving)

    def offset(self, observed: ObservedPools) -> int:
        """Return the offset after all changes in progress; `observed` is the result of `update`."""
        changes = self._changes.values()
        return observed.offset + sum(offset_of(each.worker.initial_role, each.role) for each in changes)

    @property
    def into(self) -> ByPool[int]:
        """Number of workers that change into each pool."""
        roles = [each.role for each in self._changes.values()]
        return ByPool(roles.count("prefill"), roles.count("decode"))

    def progress(self, progress: ByPool[PoolProgress], observed: ObservedPools) -> ByPool[PoolProgress]:
        """Return the pools' progress with the changes in it; `observed` is the result of `update`."""
        leaving = observed.workers.map(lambda pool: sum(map(self._is_leaving, pool)))
        return progress.zip(self.into.zip(leaving)).map(
            lambda each: replace(each[0], num_flipping_in=each[1][0], num_flipping_out=each[1][1])
        )

    def begin(self, num: int, sizes: ByPool[int], observed: ObservedPools) -> int:
        """Begin changes into decode, or with a negative `num` into prefill; return how many, with the same sign.

        The pool that shrinks keeps its size of `sizes`, and at least one ready worker.
        """
        role: Role = "decode" if num > 0 else "prefill"
        pool, size = (observed.ready.prefill, sizes.prefill) if num > 0 else (observed.ready.decode, sizes.decode)
        able = sorted((each for each in pool if each.address and each.initial_role is not None), key=_order)
        chosen = able[: max(0, min(abs(num), len(pool) - max(1, size)))]
        for worker in chosen:
            logger.info("%s changes its role from %s to %s", worker.worker_id, worker.role, role)
            self._changes[worker.worker_id] = RoleChange(worker, role, self._call(worker, role))
        return len(chosen) if num > 0 else -len(chosen)

    def _is_done(self, worker: WorkerReport) -> bool:
        change = self._changes.get(worker.worker_id)
        return change is not None and worker.role == change.role

    def _is_leaving(self, worker: WorkerReport) -> bool:
        change = self._changes.get(worker.worker_id)
        return change is not None and worker.role != change.role

    def _is_pending(self, change: RoleChange, now_s: float) -> bool:
        """Return whether routers may yet report a change whose call has ended."""
        error = CancelledError("its call was cancelled") if change.call.cancelled() else change.call.exception()
        if error is None:
            change.returned_s = now_s if change.returned_s is None else change.returned_s
            return now_s - change.returned_s < REPORT_S
        self._paused_until_s = now_s + PAUSE_S
        logger.warning(
            "%s keeps the role %s; for %g s replicas are started and stopped instead: %s",
            *(change.worker.worker_id, change.worker.role, PAUSE_S, error),
        )
        return False


def _order(worker: WorkerReport) -> tuple[bool, int, int, str]:
    """Return the sort key of workers by which to change first."""
    num_requests = worker.num_running + worker.num_waiting
    return worker.role == worker.initial_role, num_requests, worker.num_queued_tokens, worker.worker_id


def bounded_offset(offset: int, sizes: ByPool[int], least: ByPool[int], most: ByPool[int]) -> int:
    """Return the offset closest to `offset` with which the deployments of these pools are within their bounds."""
    lowest = max(least.prefill - sizes.prefill, sizes.decode - most.decode)
    highest = min(most.prefill - sizes.prefill, sizes.decode - least.decode)
    return min(max(offset, lowest), highest)


def bounded_sizes(sizes: ByPool[int], least: ByPool[int], most: ByPool[int]) -> ByPool[int]:
    """Return each deployment's size within its own bounds.

    For when no worker can return to its deployment's role: a deployment that may not shrink further must not make the
    other one shrink, whose last worker of its own role Serve might stop.
    """
    return sizes.zip(least.zip(most)).map(lambda each: min(max(each[0], each[1][0]), each[1][1]))
