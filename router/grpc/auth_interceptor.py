"""Rejection of calls without a required API key, before their message is read: it may be as large as an HTTP body."""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from typing import Any

import grpc
from grpc.aio import ServerInterceptor, ServicerContext

from baton.router.auth.client import Gate
from baton.rpc.status import Unauthenticated, message_of, status_of

Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any]"]]


class GateInterceptor(ServerInterceptor):  # type: ignore[type-arg]  # generic only in the stubs
    """Authenticates the calls of one service; other services (health, reflection) need no key."""

    def __init__(self, gate: Gate, service_name: str, open_methods: Collection[str] = ()) -> None:
        """`open_methods`: names of methods that need no key."""
        self._gate = gate
        self._prefix = f"/{service_name}/"
        self._open_methods = frozenset(f"{self._prefix}{name}" for name in open_methods)

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> "grpc.RpcMethodHandler[Any, Any]":
        """gRPC: return the handler of a call."""
        method = handler_call_details.method
        if method.startswith(self._prefix) and method not in self._open_methods:
            try:
                self._gate.client(text_metadata(handler_call_details.invocation_metadata))
            except Unauthenticated as error:
                return _refusal(error)
        return await continuation(handler_call_details)


def text_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> dict[str, str]:
    """Return a call's text metadata; the first one of duplicates."""
    headers: dict[str, str] = {}
    for name, value in metadata or ():
        if isinstance(value, str):
            headers.setdefault(name, value)
    return headers


def _refusal(error: Unauthenticated) -> "grpc.RpcMethodHandler[Any, Any]":
    """Return a handler that ends the call. As a streaming handler, it does not read the request message."""

    async def refuse(_messages: AsyncIterator[Any], context: ServicerContext[Any, Any]) -> None:
        await context.abort(status_of(error).code, message_of(error))

    return grpc.stream_stream_rpc_method_handler(refuse)
