"""The lives of a worker's process: periods in one role, each a new incarnation.

1. A life begins with a fresh incarnation, drain state and set of services, on the engine that the process has loaded.
2. A change of role drains it, like `Drain`: requests finish, or migrate to other workers.
3. Its services are closed. Calls that they still have end with UNAVAILABLE, so that their callers ask other workers.
4. The next life begins at the same address. Weights, KV pool, prefix cache and connections of the KV transport stay.
   If its services cannot be built, the next life has the former role.
5. Routers see their streams to the former incarnation end, and connect to the new one.
"""

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

from grpc_health.v1 import health

from baton.doctor.known_peers import KnownPeers
from baton.process.logs import change_log_role
from baton.protos import doctor_pb2, worker_pb2, worker_pb2_grpc
from baton.rpc.pool_description import pool_to_proto
from baton.rpc.pooling import pooling_to_proto
from baton.rpc.reflection import enable_reflection
from baton.settings.names import Role
from baton.worker.base import WorkerIdentity
from baton.worker.drain import DrainConflict, DrainState
from baton.worker.kv.cache_control import KVCacheService
from baton.worker.kv.source import KVSourceService
from baton.worker.registration import member_of, registered
from baton.worker.role import ROLE_SERVICES, ROLES, RoleBuilders, WorkerCore, WorkerServices
from baton.worker.service import RoleConflict, WorkerService
from baton.worker.service_table import ServiceSet, ServiceTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Life:
    """A worker in one role."""

    core: WorkerCore
    services: WorkerServices  # of the role
    service: WorkerService  # of every role
    description: worker_pb2.WorkerDescription
    has_ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def role(self) -> Role:
        """The role."""
        return self.core.config.role

    @property
    def service_names(self) -> list[str]:
        """Full names of the services."""
        services = worker_pb2.DESCRIPTOR.services_by_name
        names = [services[name].full_name for name in ("Worker", "KVSource", "KVCache", *ROLE_SERVICES[self.role])]
        return [*names, doctor_pb2.DESCRIPTOR.services_by_name["Doctor"].full_name]


class Lives:
    """The current life of a worker's process, and the change to the next one. Used from the event loop."""

    def __init__(
        self,
        core: WorkerCore,
        builders: RoleBuilders,
        address: str,
        peers: KnownPeers,
        changed: Callable[[Sequence[str]], Awaitable[None]],
    ) -> None:
        """Begin the first life, with the role, incarnation and drain of `core`. `start` registers it.

        `changed` is called with the names of the services of each later life.
        """
        self.table = ServiceTable()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # no life goes on
        self._builders = builders
        self._address = address
        self._initial_role: Role = core.config.role
        self._peers = peers
        self._changed = changed
        self._switching = asyncio.Lock()  # held from the end of a life to the beginning of the next one
        self._is_ending = False
        self._change: asyncio.Task[Life] | None = None
        self._registrations: set[asyncio.Task[None]] = set()
        self.current = self._begin(core, core.host.pool.incarnation)

    def start(self) -> None:
        """Register the current life in the registry, if there is one."""
        task = asyncio.create_task(_keep_registered(self.current), name="registration")
        self._registrations.add(task)
        task.add_done_callback(self._end_registration)

    async def change(self, role: Role, timeout_s: float) -> str:
        """Change the role, and return the incarnation once it is ready; no-op for the current role.

        timeout_s: for running requests to finish before they migrate. The change continues if the caller is cancelled.
        Raises RoleConflict or DrainConflict if it is not possible; the worker then serves its former role.
        """
        if self._change is not None and not self._change.done():
            raise RoleConflict("a change of this worker's role is in progress; wait for its end, or undrain the worker")
        if role == self.current.role:
            return self.current.description.incarnation
        self._check(role)
        change = self._change = asyncio.create_task(self._change_to(role, timeout_s), name="role change")
        change.add_done_callback(_note_failure)
        await asyncio.wait((change,))
        return change.result().description.incarnation

    async def begin_end(self) -> None:
        """Refuse further changes, and begin the final drain of the current life."""
        self._is_ending = True
        async with self._switching:
            self.current.core.drain.begin(final=True)

    async def withdraw(self) -> None:
        """Remove the worker from the registry."""
        self.current.has_ended.set()
        if self._registrations:
            await asyncio.wait(self._registrations)

    async def close(self) -> None:
        """Close the role's services."""
        if self._change is not None:
            self._change.cancel()
            await asyncio.wait((self._change,))
        await self.current.services.close()

    def _check(self, role: Role) -> None:
        config = self.current.core.config
        if self._is_ending:
            raise RoleConflict("the worker is shutting down and cannot change its role; start it again with the other")
        if config.group_size > 1:
            raise RoleConflict(
                f"{config.worker_id} is a rank of the expert group {config.group!r}, all of whose ranks keep the role "
                f"{config.role}; start another worker instead"
            )
        if role not in self._builders:
            raise RoleConflict(
                f"{config.worker_id} was started for the role {config.role} only; start it with `baton worker` to "
                "change its role"
            )

    async def _change_to(self, role: Role, timeout_s: float) -> Life:
        former = self.current
        num_left = await former.core.drain.run(timeout_s)
        async with self._switching:
            if self._is_ending:
                raise RoleConflict("the worker is shutting down, and keeps its role until then")
            if former.core.drain.state is not DrainState.DRAINED:
                raise DrainConflict("the worker was undrained before its role had changed")
            drained_s = time.monotonic()
            former.core.drain.begin(final=True)  # from now on an undrain is too late
            try:
                await self._switch(former, role)
            except RoleConflict:
                raise
            except Exception as error:  # neither life serves, so that the process must not go on
                self._fail(error)
                raise
        await self._changed(self.current.service_names)
        logger.info(
            "%s has changed its role from %s to %s, %.3f s after it was drained; %d requests did not finish before",
            *(former.core.config.worker_id, former.role, role, time.monotonic() - drained_s, num_left),
        )
        return self.current

    async def _switch(self, former: Life, role: Role) -> None:
        """End a life and begin the next one. Raises RoleConflict if that one has the former role."""
        await former.services.close()
        host = former.core.host
        await host.call(lambda _: None)  # the services have seen all steps with requests of theirs
        host.forget_listeners()
        self._follow(former, role)

    def _follow(self, former: Life, role: Role) -> None:
        """Begin the life after `former`. Raises RoleConflict if it has the former role."""
        error: Exception | None = None
        core = replace(former.core, config=replace(former.core.config, role=role), drain=former.core.drain.succeed())
        try:
            self.current = self._begin(core, uuid.uuid4().hex)
        except Exception as failure:  # whatever is wrong with the role, the worker had served its former one
            logger.exception("%s cannot serve the role %s", core.config.worker_id, role)
            error = failure
            core.host.forget_listeners()
            self.current = self._begin(
                replace(core, config=former.core.config, drain=former.core.drain.succeed()), uuid.uuid4().hex
            )
        former.service.close()
        former.has_ended.set()
        self.start()
        if error is not None:
            raise RoleConflict(f"{core.config.worker_id} serves {former.role} as before: {error}") from error

    def _begin(self, core: WorkerCore, incarnation: str) -> Life:
        """Build the services of the core's role, and have them accept calls to `incarnation`."""
        host = core.host
        change_log_role(core.config.role)
        host.identity = WorkerIdentity(incarnation, host.fingerprint)
        services = self._builders[core.config.role](core)
        description = _describe(core, incarnation, self._address, self._initial_role)

        def transport_choices() -> dict[str, str]:
            return {peer: f"{choice.transport}: {choice.reason}" for peer, choice in host.ranks.choices.items()}

        service = WorkerService(
            host,
            core.counters,
            core.drain,
            lambda: description,
            transport_choices,
            core.config.drain_timeout_s,
            self._peers,
            change_role=self.change,
            stored=core.stores.hashes,
            adapters=core.adapters,
        )
        life, added = Life(core, services, service, description), ServiceSet()
        services.register(added.as_server)
        worker_pb2_grpc.add_WorkerServicer_to_server(service, added.as_server)
        worker_pb2_grpc.add_KVSourceServicer_to_server(KVSourceService(host, core.drain), added.as_server)
        cache = KVCacheService(host, core.config.max_pinned_fraction, service.note_news, core.stores)
        worker_pb2_grpc.add_KVCacheServicer_to_server(cache, added.as_server)
        enable_reflection(added.as_server, [*life.service_names, health.SERVICE_NAME])
        self.table.replace(added)
        return life

    def _end_registration(self, task: "asyncio.Task[None]") -> None:
        self._registrations.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)


def _note_failure(change: "asyncio.Task[Life]") -> None:
    """Log why a change of role failed; its caller may have gone."""
    if not change.cancelled() and (error := change.exception()) is not None:
        logger.warning("the worker keeps its role: %s", error)


async def _keep_registered(life: Life) -> None:
    """Keep the life registered until it has ended. Raises the error of the registration."""
    config = life.core.config
    member = member_of(life.description, life.role)
    async with registered(config.registry, member, config.lease_s, life.core.drain) as failed:
        ended = asyncio.ensure_future(life.has_ended.wait())
        await asyncio.wait((failed, ended), return_when=asyncio.FIRST_COMPLETED)
        ended.cancel()
        if failed.done():
            failed.result()


def _describe(core: WorkerCore, incarnation: str, address: str, initial_role: Role) -> worker_pb2.WorkerDescription:
    """Return the worker's description for routers and the registry."""
    config, host = core.config, core.host
    return worker_pb2.WorkerDescription(
        worker_id=config.worker_id,
        incarnation=incarnation,
        role=ROLES[config.role],
        address=address,
        model=core.model_name,
        fingerprint=host.origin.fingerprint,
        block_size=host.config.block_size,
        num_blocks=host.pool.num_blocks // host.kv_groups.num_groups,
        max_model_len=host.finish_rule.max_model_len,
        pool=pool_to_proto(host.pool),
        transport=config.transport,
        max_num_seqs=config.engine.batch_seqs,
        max_num_batched_tokens=config.engine.step_tokens,
        num_ranks=host.ranks.size,
        application=config.application,
        initial_role=ROLES[initial_role],
        vocabulary=host.vocabulary,
        kv_stores=core.stores.names,
        adapters=core.adapters.limits,
        pooling=pooling_to_proto(host.pooling) if host.pooling is not None and config.role != "decode" else None,
    )
