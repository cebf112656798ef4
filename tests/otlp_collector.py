"""A collector of traces: the OTLP trace service over gRPC and HTTP, which keeps the spans that it receives."""

import asyncio
import gzip
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class CollectedSpan:
    """A span as it arrived."""

    name: str
    trace_id: str
    span_id: str
    parent_id: str  # empty: none
    service: str
    kind: int
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    links: list[str]
    is_error: bool
    message: str


@dataclass
class Collector:
    """The spans that have arrived, from all processes."""

    endpoint: str = ""
    spans: list[CollectedSpan] = field(default_factory=list)
    raw: bytes = b""  # of all requests, for searches
    headers: list[dict[str, str]] = field(default_factory=list)

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keep the spans of a request."""
        self.raw += request.SerializeToString()
        for resource in request.resource_spans:
            service = _attributes(resource.resource.attributes)["service.name"]
            for scope in resource.scope_spans:
                self.spans += [_collected(span, service) for span in scope.spans]

    async def until(self, condition: Callable[[list[CollectedSpan]], bool]) -> list[CollectedSpan]:
        """Return the spans once they meet a condition."""
        async with asyncio.timeout(30):
            while not condition(self.spans):
                await asyncio.sleep(0.02)
        return self.spans

    def named(self, name: str) -> CollectedSpan:
        """Return the only span with a name."""
        [span] = [span for span in self.spans if span.name == name]
        return span


def _collected(span: trace_pb2.Span, service: str) -> CollectedSpan:
    return CollectedSpan(
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        service=service,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes=_attributes(span.attributes),
        events=[(event.name, _attributes(event.attributes)) for event in span.events],
        links=[link.span_id.hex() for link in span.links],
        is_error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        message=span.status.message,
    )


def _attributes(attributes: Any) -> dict[str, Any]:
    pairs: list[KeyValue] = list(attributes)
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind) if kind else None


class _Service(TraceServiceServicer):
    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def Export(self, request: Any, context: Any) -> ExportTraceServiceResponse:  # noqa: N802
        self._collector.headers.append({key: str(value) for key, value in context.invocation_metadata()})
        self._collector.take(request)
        return ExportTraceServiceResponse()


@asynccontextmanager
async def grpc_collector() -> AsyncIterator[Collector]:
    """Serve a collector over gRPC."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(_Service(collector), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    collector.endpoint = f"grpc://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        server.stop(None).wait()


@asynccontextmanager
async def http_collector() -> AsyncIterator[Collector]:
    """Serve a collector over HTTP."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            collector.headers.append({name.lower(): value for name, value in self.headers.items()})
            collector.take(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    collector.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def silent_collector() -> Iterator[str]:
    """Yield the address of a server that accepts connections and never replies."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"
