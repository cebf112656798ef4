"""Rejection of malformed requests with INVALID_ARGUMENT, in every method of a server.

By default the gRPC library treats them as server errors: it responds UNKNOWN with the text of the Python exception,
and logs a traceback for each.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not generic at run time
Context = grpc.aio.ServicerContext[Any, Any]
Check = Callable[[str, bytes], None]  # (method, message); raises MessageRefused or DecodeError


class MessageRefused(Exception):
    """A message that exceeds a limit; the text is the error for the client."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """The placeholder of a request that cannot be parsed."""

    text: str  # error for the client


class RefuseMalformed(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic at run time
    """The interceptor that replaces each method's handler by one that rejects malformed requests."""

    def __init__(self, check: Check = lambda _method, _message: None) -> None:
        """`check` is called with each message before it is parsed."""
        self._handlers: dict[str, tuple[Handler, Handler]] = {}  # (original, replaced) by method
        self._check = check

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the method's replaced handler; None, which means an unknown method, is passed through."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)  # another one after a change of the worker's role
        if handler is None or not _is_async(_behavior(handler)):
            return handler
        original, replaced = self._handlers.get(method, (None, None))
        if replaced is None or original is not handler:
            replaced = _checked(handler, method, self._check)
            self._handlers[method] = handler, replaced
        return replaced


def _checked(handler: Handler, method: str, check: Check) -> Handler:
    behavior, wrap = _behavior(handler), _from_stream if handler.request_streaming else _from_one
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    deserialize = handler.request_deserializer

    def parse(request: bytes) -> Any:
        try:
            check(method, request)
            return deserialize(request) if deserialize is not None else request
        except DecodeError as error:
            return Malformed(f"the request is not a message of this method: {error}")
        except MessageRefused as error:
            return Malformed(str(error))

    checked: Handler = make(wrap(behavior), parse, handler.response_serializer)
    return checked


def _behavior(handler: Handler) -> Callable[..., Any]:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(each for each in kinds if each is not None)


def _is_async(behavior: Callable[..., Any]) -> bool:
    return inspect.isasyncgenfunction(behavior) or inspect.iscoroutinefunction(behavior)


def _from_one(behavior: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method with a single request."""

    async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
        await _refuse(request, context)
        async with aclosing(behavior(request, context)) as responses:
            async for response in responses:
                yield response

    async def unary(request: Any, context: Context) -> Any:
        await _refuse(request, context)
        return await behavior(request, context)

    return stream if inspect.isasyncgenfunction(behavior) else unary


def _from_stream(behavior: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method with a stream of requests; the method sees the stream end before a malformed one."""

    async def well_formed(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for request in requests:
            if isinstance(request, Malformed):
                context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
                context.set_details(request.text)
                return
            yield request

    async def stream(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async with aclosing(behavior(well_formed(requests, context), context)) as responses:
            async for response in responses:
                yield response

    async def unary(requests: AsyncIterator[Any], context: Context) -> Any:
        return await behavior(well_formed(requests, context), context)

    return stream if inspect.isasyncgenfunction(behavior) else unary


async def _refuse(request: Any, context: Context) -> None:
    if isinstance(request, Malformed):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.text)
