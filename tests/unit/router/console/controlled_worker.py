"""A scripted worker that takes orders."""

import asyncio
from typing import Any

import grpc

from baton.protos import worker_pb2
from tests.unit.router.rigs.scripted_worker import ScriptedWorker


class ControlledWorker(ScriptedWorker):
    """A worker that drains, undrains and changes its role, and records the orders."""

    def __init__(self, worker_id: str = "decode-0", role: int = worker_pb2.WORKER_ROLE_DECODE) -> None:
        super().__init__(worker_id, role)
        self.orders: list[str] = []
        self.refuses = False
        self.may_drain = asyncio.Event()
        self.may_drain.set()

    async def Drain(self, request: Any, context: Any) -> worker_pb2.DrainResponse:  # noqa: N802
        await self._take("drain", context)
        self.draining = True
        self.news()
        await self.may_drain.wait()
        return worker_pb2.DrainResponse()

    async def Undrain(self, request: Any, context: Any) -> worker_pb2.UndrainResponse:  # noqa: N802
        await self._take("undrain", context)
        self.draining = False
        self.news()
        return worker_pb2.UndrainResponse()

    async def ChangeRole(self, request: Any, context: Any) -> worker_pb2.ChangeRoleResponse:  # noqa: N802
        await self._take(f"role {request.role}", context)
        return worker_pb2.ChangeRoleResponse(incarnation=self.incarnation)

    async def _take(self, order: str, context: Any) -> None:
        if self.refuses:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "this worker keeps its state")
        self.orders.append(order)
