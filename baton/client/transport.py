"""Resuming transport for `httpx.Client`."""

import time
from collections.abc import Callable, Iterator, Sequence

import httpx

from baton.client.outage import ResumePolicy
from baton.client.resuming_stream import ResumingStream, is_generation
from baton.client.router_list import RouterList


class ResumingTransport(httpx.BaseTransport):
    """Transport that resumes completions at another router, or later at the same one, when a router fails."""

    def __init__(
        self,
        inner: httpx.BaseTransport | None = None,
        *,
        routers: Sequence[str | httpx.URL] = (),
        max_outage_s: float = 60.0,
        silence_s: float = 5.0,
    ) -> None:
        """Send through `inner`, by default an `httpx.HTTPTransport`.

        `routers` are base URLs of further routers of the same cluster. A request fails if no new token arrives within
        `max_outage_s` of a failure. A router that sends nothing on a stream for `silence_s` counts as failed.
        """
        self._inner = httpx.HTTPTransport() if inner is None else inner
        self._routers = RouterList(routers)
        self._policy = ResumePolicy(max_outage_s, silence_s)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response. Raises TransportError after the last attempt."""
        if not is_generation(request):
            return self._inner.handle_request(request)
        request.read()
        resuming = ResumingStream(request, self._routers, self._policy)
        while True:
            response = self._open(resuming)
            if not resuming.is_resumable(response):
                return response
            if resuming.is_event_stream(response):
                body = _ResumingBody(resuming, response, self._open)
                return httpx.Response(200, headers=response.headers, stream=body, extensions=response.extensions)
            try:
                response.read()
                return response
            except httpx.TransportError as error:
                response.close()
                resuming.lose(error)

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()

    def _open(self, resuming: ResumingStream) -> httpx.Response:
        """Send the request until a response can be passed to the client."""
        while True:
            time.sleep(resuming.delay_s)
            try:
                response = self._inner.handle_request(resuming.attempt())
                if response.status_code != 200:
                    response.read()
            except httpx.TransportError as error:
                resuming.lose(error)
                continue
            if resuming.accept(response):
                return response
            response.close()
            resuming.refuse(response)


class _ResumingBody(httpx.SyncByteStream):
    """Body of the client's response, joined from the bodies of all attempts. Owns the latest attempt's response."""

    def __init__(
        self, resuming: ResumingStream, response: httpx.Response, reopen: Callable[[ResumingStream], httpx.Response]
    ) -> None:
        self._resuming = resuming
        self._response = response
        self._reopen = reopen

    def __iter__(self) -> Iterator[bytes]:
        while True:
            try:
                for chunk in self._response.iter_raw():
                    if events := self._resuming.receive(chunk):
                        yield events
                self._resuming.end()
                return
            except httpx.TransportError as error:
                self._response.close()
                if self._resuming.is_over:
                    return
                self._resuming.lose(error)
            self._response = self._reopen(self._resuming)

    def close(self) -> None:
        self._response.close()
