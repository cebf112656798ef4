"""A real HTTP server in the test's process, with canned responses."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@dataclass(frozen=True, slots=True)
class Reply:
    """The response for a path; pieces of `body` are sent one after the other."""

    body: Iterator[bytes] | list[bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


Routes = dict[str, Callable[[dict[str, object]], Reply]]


def json_reply(content: object, status: int = 200) -> Reply:
    """Return a JSON response."""
    return Reply([json.dumps(content).encode()], status, {"content-type": "application/json"})


def sse_reply(chunks: list[object], headers: dict[str, str]) -> Reply:
    """Return a stream of server-sent events with OpenAI's end mark."""
    events = [f"data: {json.dumps(chunk)}\n\n".encode() for chunk in chunks]
    return Reply([*events, b"data: [DONE]\n\n"], 200, {"content-type": "text/event-stream", **headers})


@contextmanager
def serving(routes: Routes) -> Iterator[str]:
    """Yield the URL of a server with these routes, which get the request's JSON."""

    class Handler(BaseHTTPRequestHandler):
        """Responds by the routes."""

        def do_GET(self) -> None:
            self._respond({})

        def do_POST(self) -> None:
            self._respond(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _respond(self, content: dict[str, object]) -> None:
            route = routes.get(self.path)
            reply = route(content) if route else json_reply({"error": {"message": f"no {self.path}"}}, 404)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for piece in reply.body:
                    self.wfile.write(piece)
                    self.wfile.flush()
            except (BrokenPipeError, ConnectionResetError):
                return  # the client disconnected, as some tests intend

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
