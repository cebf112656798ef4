"""The gRPC services of a worker's current role, which can be replaced while its server runs."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

import grpc

Handlers: TypeAlias = "grpc.GenericRpcHandler[Any, Any]"  # of one service; not generic at run time


class ServiceSet:
    """Services of one role, to which generated code adds them as to a server."""

    def __init__(self) -> None:
        self.handlers: list[Handlers] = []

    @property
    def as_server(self) -> grpc.aio.Server:
        """This set, for functions that add a service to a server."""
        return cast(grpc.aio.Server, self)  # they call only the two methods below

    def add_generic_rpc_handlers(self, handlers: Sequence[Handlers]) -> None:
        """Add the methods of a service."""
        self.handlers += handlers

    def add_registered_method_handlers(self, service: str, methods: Mapping[str, Any]) -> None:
        """Ignore the methods, as grpc.aio does: they are among the generic handlers."""


class ServiceTable(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # not generic at run time
    """The handlers of the current services. Calls in progress stay with the services that accepted them."""

    def __init__(self) -> None:
        self._current = ServiceSet()

    def replace(self, services: ServiceSet) -> None:
        """Have these services accept all further calls."""
        self._current = services

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[Any, Any] | None":
        """Return the handler of a call; None for a method that the current services lack."""
        found = (each.service(handler_call_details) for each in self._current.handlers)
        return next((handler for handler in found if handler is not None), None)
