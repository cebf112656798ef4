"""Requests that are no messages: refused with INVALID_ARGUMENT, in every method of a server.

Left to itself, the gRPC library takes them for a failing of the server: it answers UNKNOWN with Python's words, and
writes a traceback into the log for each.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # at run time it takes no parameters
Context = grpc.aio.ServicerContext[Any, Any]
Check = Callable[[str, bytes], None]  # of a method's message; raises MessageRefused or DecodeError


class MessageRefused(Exception):
    """Raised for a message that exceeds a limit; its text is the error for the client."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Stands for a request that cannot be read."""

    text: str  # of the error


class RefuseMalformed(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # at run time it takes no parameters
    """Owns the careful twin of each method's handler."""

    def __init__(self, check: Check = lambda _method, _message: None) -> None:
        """`check` is called with each message before it is parsed."""
        self._careful: dict[str, Handler] = {}
        self._check = check

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The method's careful twin; None, which stands for an unknown method, is left as it is."""
        method = handler_call_details.method
        if method not in self._careful:
            handler = await continuation(handler_call_details)
            if handler is None or not _is_async(_behavior(handler)):
                return handler
            self._careful[method] = _careful(handler, method, self._check)
        return self._careful[method]


def _careful(handler: Handler, method: str, check: Check) -> Handler:
    behavior, wrap = _behavior(handler), _from_stream if handler.request_streaming else _from_one
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    read = handler.request_deserializer

    def read_carefully(request: bytes) -> Any:
        try:
            check(method, request)
            return read(request) if read is not None else request
        except DecodeError as error:
            return Malformed(f"the request is no message of this method: {error}")
        except MessageRefused as error:
            return Malformed(str(error))

    made: Handler = make(wrap(behavior), read_carefully, handler.response_serializer)
    return made


def _behavior(handler: Handler) -> Callable[..., Any]:
    kinds = (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
    return next(each for each in kinds if each is not None)


def _is_async(behavior: Callable[..., Any]) -> bool:
    return inspect.isasyncgenfunction(behavior) or inspect.iscoroutinefunction(behavior)


def _from_one(behavior: Callable[..., Any]) -> Callable[..., Any]:
    """A method that takes one request."""

    async def answers(request: Any, context: Context) -> AsyncIterator[Any]:
        await _refuse(request, context)
        async with aclosing(behavior(request, context)) as found:
            async for answer in found:
                yield answer

    async def answer(request: Any, context: Context) -> Any:
        await _refuse(request, context)
        return await behavior(request, context)

    return answers if inspect.isasyncgenfunction(behavior) else answer


def _from_stream(behavior: Callable[..., Any]) -> Callable[..., Any]:
    """A method that takes a stream of requests; for it the stream ends before one that cannot be read."""

    async def requests(given: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for request in given:
            if isinstance(request, Malformed):
                context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
                context.set_details(request.text)
                return
            yield request

    async def answers(given: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async with aclosing(behavior(requests(given, context), context)) as found:
            async for answer in found:
                yield answer

    async def answer(given: AsyncIterator[Any], context: Context) -> Any:
        return await behavior(requests(given, context), context)

    return answers if inspect.isasyncgenfunction(behavior) else answer


async def _refuse(request: Any, context: Context) -> None:
    if isinstance(request, Malformed):
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, request.text)
