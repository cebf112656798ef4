"""Proxy of a worker that understands only the messages of the last release."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc
from google.protobuf.descriptor import MethodDescriptor

from baton.rpc.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from tests.unit.protos.last_release import UNKNOWN_FIELD, LastRelease, as_known_to

HEALTH = "/grpc.health.v1."
OWN_KEYS = ("user-agent", "grpc-", "te", "content-type")  # of metadata: written anew by the channel


class LastWire(grpc.GenericRpcHandler):
    """Handler that passes on the last release's methods, without the fields that its messages do not have.

    What is behind it sees a peer of the last release, and so does what is in front of it. Newer methods are
    unimplemented. Each message gets a field that no release knows.
    """

    def __init__(self, release: LastRelease, channel: grpc.aio.Channel) -> None:
        self._methods = release.methods()
        self._channel = channel
        self.address = ""  # the proxy's
        self.called: set[str] = set()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a method; every kind of call is a stream of messages on the wire."""
        method = self._methods.get(details.method)
        if method is None and not details.method.startswith(HEALTH):
            return None
        self.called.add(details.method)
        return grpc.stream_stream_rpc_method_handler(partial(self._relay, details.method, method))

    async def _relay(
        self,
        path: str,
        method: MethodDescriptor | None,
        requests: AsyncIterator[bytes],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[bytes]:
        async def known_requests() -> AsyncIterator[bytes]:
            async for request in requests:
                yield request if method is None else self._as_of_last_release(method.input_type, request)

        metadata = [(key, value) for key, value in context.invocation_metadata() or () if not key.startswith(OWN_KEYS)]
        call = self._channel.stream_stream(path)(known_requests(), metadata=metadata)
        try:
            async for response in call:
                yield response if method is None else self._as_of_last_release(method.output_type, response)
        except grpc.aio.AioRpcError as error:
            context.set_trailing_metadata(error.trailing_metadata() or ())
            await context.abort(error.code(), error.details() or "")
        finally:
            call.cancel()

    def _as_of_last_release(self, descriptor: object, content: bytes) -> bytes:
        known = as_known_to(descriptor, content)  # type: ignore[arg-type]  # protobuf's stubs have two kinds
        if known.DESCRIPTOR.name == "WorkerDescription":
            known.address = self.address  # type: ignore[attr-defined]  # peers come through the proxy too
        return known.SerializeToString() + UNKNOWN_FIELD  # as a newer peer would send


@asynccontextmanager
async def last_wire(release: LastRelease, address: str) -> AsyncIterator[LastWire]:
    """Serve a worker's address as the last release would."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        handler = LastWire(release, channel)
        server = grpc.aio.server(handlers=[handler], options=SERVER_OPTIONS)
        handler.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        try:
            yield handler
        finally:
            await server.stop(None)
