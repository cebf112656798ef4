"""Control of workers: drain, undrain, change of role."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

import grpc

from baton.protos.worker_pb2 import ChangeRoleRequest, DrainRequest, UndrainRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from baton.router.errors import FieldError
from baton.router.policy.cluster import WorkerRole
from baton.router.served_model import ServedModel
from baton.router.workers.connection import ROLES, WorkerConnection
from baton.router.workers.connection_state import ConnectionState
from baton.rpc.status import Conflict, Unavailable
from baton.rpc.tls import Security

logger = logging.getLogger(__name__)

ANSWER_S = 2.0  # after which the caller gets a response: a drain may take minutes
MAX_CALLS = 64  # concurrent calls to workers
ROLE_NUMBERS = {role: number for number, role in ROLES.items()}
Call = Callable[[grpc.aio.Channel], Awaitable[object]]


class Action(Enum):
    """Change of a worker's state."""

    DRAIN = "drain"
    UNDRAIN = "undrain"
    ROLE = "role"


@dataclass(frozen=True, slots=True)
class Order:
    """An action for one worker."""

    action: Action
    address: str
    role: WorkerRole | None = None  # of Action.ROLE
    force: bool = False  # also if no other worker of its role accepts requests


def read_order(action: str, query: Mapping[str, str]) -> Order:
    """Return the order of a path and its query. Raises FieldError."""
    if action not in {each.value for each in Action}:
        raise FieldError("action", f"action: must be drain, undrain or role, not {action[:50]!r}")
    address, role = query.get("address", ""), query.get("role")
    if not address:
        raise FieldError("address", "address: must be that of a worker, as /workers lists it")
    if (role is not None) != (action == Action.ROLE.value):
        raise FieldError("role", "role: must be given for the action role, and for no other")
    if role is not None and role not in {each.value for each in WorkerRole}:
        raise FieldError("role", f"role: must be prefill, decode or both, not {role[:50]!r}")
    force = query.get("force", "false")
    if force not in ("true", "false"):
        raise FieldError("force", "force: must be true or false")
    return Order(Action(action), address, None if role is None else WorkerRole(role), force == "true")


class WorkerControls:
    """Calls of workers on behalf of the console. A call goes on after its caller was answered."""

    def __init__(self, models: Sequence[ServedModel], security: Security) -> None:
        self._models = models
        self._security = security
        self._calls: dict[tuple[str, Action], asyncio.Task[None]] = {}  # by address; an undrain may end a drain

    async def run(self, order: Order) -> bool:
        """Carry an order out. Return whether it was done within `ANSWER_S`; otherwise it goes on.

        Raises FieldError for an unknown worker, Conflict if it refuses or is the last of its role, or Unavailable.
        """
        connection = self._check(order)
        actions = {action for address, action in self._calls if address == order.address}
        if order.action in actions or (actions and order.action is not Action.UNDRAIN):
            raise Conflict(f"the worker at {order.address} is still carrying out the previous order")
        if len(self._calls) >= MAX_CALLS:
            raise Unavailable(f"{MAX_CALLS} workers are carrying out orders; wait until one has finished")
        task = asyncio.create_task(self._call(connection.address, _call_of(order)), name=f"order for {order.address}")
        self._calls[order.address, order.action] = task
        task.add_done_callback(partial(self._forget, order))
        done, _ = await asyncio.wait((task,), timeout=ANSWER_S)
        if done:
            task.result()
        return bool(done)

    def close(self) -> None:
        """Cancel the calls; workers go on draining."""
        for task in self._calls.values():
            task.cancel()

    def _forget(self, order: Order, task: asyncio.Task[None]) -> None:
        del self._calls[order.address, order.action]
        if not task.cancelled() and (error := task.exception()) is not None:  # the caller may have left
            logger.warning("the console's order %s for a worker failed: %s", order.action.value, error)

    def _check(self, order: Order) -> WorkerConnection:
        for model in self._models:
            connections = model.pool.connections
            found = next((each for each in connections if each.address == order.address), None)
            if found is None:
                continue
            if found.description is None or found.state is ConnectionState.CONNECTING:
                raise Unavailable(f"the router is not connected to the worker at {order.address}")
            is_leaving = order.action is not Action.UNDRAIN and found.state is ConnectionState.READY
            if is_leaving and not order.force and ROLES[found.description.role] is not order.role:
                leaving = {address for address, action in self._calls if action is not Action.UNDRAIN}
                check_replaceable(found, [each for each in connections if each.address not in leaving])
            return found
        raise FieldError("address", f"address: no worker has the address {order.address[:100]}")

    async def _call(self, address: str, call: Call) -> None:
        """Raises Conflict or Unavailable."""
        try:
            async with self._security.channel(address) as channel:  # a change of role ends the router's own one
                await call(channel)
        except grpc.aio.AioRpcError as error:
            kind = Conflict if error.code() is grpc.StatusCode.FAILED_PRECONDITION else Unavailable
            raise kind(f"the worker at {address}: {error.details()}") from error


def check_replaceable(leaving: WorkerConnection, connections: Sequence[WorkerConnection]) -> None:
    """Raise Conflict if no other worker that accepts requests can do what the leaving one does.

    A colocated worker decodes, but prefills only what it decodes itself: it can replace any; only it or a decode worker
    can replace it.
    """
    assert leaving.description is not None
    role = ROLES[leaving.description.role]
    able = {role, WorkerRole.BOTH} | ({WorkerRole.DECODE} if role is WorkerRole.BOTH else set())
    others = (each for each in connections if each is not leaving and each.state is ConnectionState.READY)
    if any(each.description is not None and ROLES[each.description.role] in able for each in others):
        return
    raise Conflict(f"{leaving.description.worker_id} is the last {role.value} worker that accepts requests")


def _call_of(order: Order) -> Call:
    if order.action is Action.DRAIN:
        return lambda channel: WorkerStub(channel).Drain(DrainRequest())
    if order.action is Action.UNDRAIN:
        return lambda channel: WorkerStub(channel).Undrain(UndrainRequest())
    assert order.role is not None
    request = ChangeRoleRequest(role=ROLE_NUMBERS[order.role])
    return lambda channel: WorkerStub(channel).ChangeRole(request)
