"""Cross-origin requests (CORS): whether a browser lets a page of another origin read the responses."""

from collections.abc import Sequence

from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp


class CrossOrigin(CORSMiddleware):
    """Starlette's middleware for these origins, and its headers for responses that do not pass it.

    Browsers keep a page from reading a response unless its headers are named as readable, so all are. Cookies are not
    accepted: an API key is sent in a header.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        methods = ("GET", "HEAD", "POST")
        super().__init__(app, allow_origins=origins, allow_methods=methods, allow_headers=("*",), expose_headers=("*",))

    def response_headers(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """Return what the middleware would add to the response for a request from this origin."""
        headers = MutableHeaders(self.simple_headers if origin is not None else None)
        if origin is not None and not self.allow_all_origins and self.is_allowed_origin(origin):
            self.allow_explicit_origin(headers, origin)
        else:
            headers["vary"] = "Origin"
        return headers.raw
