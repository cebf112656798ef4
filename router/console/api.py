"""Paths of the web console: the page, its files, the stream of states, orders for workers."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from importlib import metadata

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from baton.router.console.access import ConsoleAccess
from baton.router.console.assets import BUILT, SECURITY_HEADERS
from baton.router.console.controls import WorkerControls, read_order
from baton.router.console.feed import ConsoleFeed
from baton.router.console.snapshot import RouterFacts, take_snapshot
from baton.router.console.worker_rows import RateMeter, WorkerRow, worker_row
from baton.router.http.built_page import BuiltPage
from baton.router.http.headers import IS_HEAD, read_headers
from baton.router.service import RouterService
from baton.rpc.status import ServiceError

CONSOLE = "/console"
ASSETS = f"{CONSOLE}/assets/"  # open paths: the files are the same for every router
SLICE_WORKERS = 200  # read in one go, in about 3 ms; then other tasks take their turn
INDEX: Mapping[str, str] = {
    "object": "server",
    "models": "/v1/models",
    "description": "/openapi.json",
    "documentation": "/docs",
    "health": "/health",
    "ready": "/ready",
    "metrics": "/metrics",
}
EVENTS_TYPE = "text/event-stream"
EVENT_HEADERS: Mapping[str, str] = {**SECURITY_HEADERS, "cache-control": "no-store", "x-accel-buffering": "no"}


class StateReader:
    """Reads the state that all viewers get."""

    def __init__(self, service: RouterService) -> None:
        config = service.config
        self._models = list(service.models)
        self._facts = RouterFacts(metadata.version("baton-serve"), config.process, config.processes, config.policy)
        self._timelines = None if service.recording is None else service.recording.timelines
        self._meter = RateMeter()

    async def read(self) -> bytes:
        """Return the state as an event."""
        rows: list[WorkerRow] = []
        now_s = asyncio.get_running_loop().time()
        for model in self._models:
            for connection in model.pool.connections:
                rows.append(worker_row(model.name, connection, self._meter, now_s))
                if not len(rows) % SLICE_WORKERS:
                    await asyncio.sleep(0)
        self._meter.end_round()
        return event("state", orjson.dumps(take_snapshot(self._facts, self._models, rows, self._timelines)))


class ConsoleApi:
    """Handler of the console's requests."""

    def __init__(self, service: RouterService) -> None:
        self._access = ConsoleAccess(service.gate, service.config)
        self._files = BuiltPage(BUILT, SECURITY_HEADERS)
        self._feed = ConsoleFeed(StateReader(service).read)
        self._controls = WorkerControls(list(service.models), service.security)

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route(CONSOLE, self.page),
            Route(f"{ASSETS}{{name}}", self.asset),
            Route(f"{CONSOLE}/events", self.events),
            Route(f"{CONSOLE}/workers/{{action}}", self.order, methods=["POST"]),
        ]

    def leave(self) -> None:
        """End the streams: the router shuts down."""
        self._feed.end()

    def close(self) -> None:
        """End the tasks."""
        self._feed.end()
        self._controls.close()

    async def page(self, _request: Request) -> Response:
        """Return the page. It holds nothing of this router, and asks for a key itself."""
        return self._files.page()

    async def asset(self, request: Request) -> Response:
        """Return one of its files."""
        return self._files.asset(request.path_params["name"])

    async def events(self, request: Request) -> Response:
        """Return the stream of states; for HEAD its headers. Raises as `check_view` or `check_room`."""
        headers = read_headers(request.scope["headers"])
        self._access.check_view(headers)
        self._feed.check_room()
        if request.scope.get(IS_HEAD):
            return Response(headers=EVENT_HEADERS, media_type=EVENTS_TYPE)
        return EventsResponse(self._events(headers))

    async def order(self, request: Request) -> Response:
        """Carry out an order for a worker. 200: it was done; 202: it goes on. Raises what `WorkerControls.run` does."""
        self._access.check_control(read_headers(request.scope["headers"]))
        is_done = await self._controls.run(read_order(request.path_params["action"], request.query_params))
        body = orjson.dumps({"status": "done" if is_done else "in progress"})
        return Response(body, 200 if is_done else 202, media_type="application/json")

    async def _events(self, headers: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield the viewer's rights, then states until its key is removed or the streams end."""
        with suppress(ServiceError), self._feed.viewer() as viewer:  # another one may have taken the last place
            yield event("hello", orjson.dumps({"can_control": self._access.can_control(headers)}))
            while (state := await viewer.take()) is not None:
                self._access.check_view(headers)
                yield state


class EventsResponse(StreamingResponse):
    """A stream of events that ends with its response, also if the client leaves while it does not read."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, headers=EVENT_HEADERS, media_type=EVENTS_TYPE)
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


def event(name: str, data: bytes) -> bytes:
    """Return a server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def index_route(has_console: bool) -> Route:
    """Return the route of `/`: browsers are sent to the console, other clients get an index of paths."""
    body = orjson.dumps({**INDEX, "console": CONSOLE} if has_console else INDEX)

    async def index(request: Request) -> Response:
        if has_console and "text/html" in request.headers.get("accept", ""):
            path = CONSOLE.removeprefix("/")  # relative: a proxy may add a prefix
            return RedirectResponse(path, 307, {"vary": "accept"})
        return Response(body, headers={"vary": "accept"}, media_type="application/json")

    return Route("/", index)
