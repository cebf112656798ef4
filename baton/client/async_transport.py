"""Resuming transport for `httpx.AsyncClient`."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import anyio
import httpx

from baton.client.outage import ResumePolicy
from baton.client.resuming_stream import ResumingStream, is_generation
from baton.client.router_list import RouterList


class AsyncResumingTransport(httpx.AsyncBaseTransport):
    """Transport that resumes completions at another router, or later at the same one, when a router fails."""

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        routers: Sequence[str | httpx.URL] = (),
        max_outage_s: float = 60.0,
        silence_s: float = 5.0,
    ) -> None:
        """Send through `inner`, by default an `httpx.AsyncHTTPTransport`.

        `routers` are base URLs of further routers of the same cluster. A request fails if no new token arrives within
        `max_outage_s` of a failure. A router that sends nothing on a stream for `silence_s` counts as failed.
        """
        self._inner = httpx.AsyncHTTPTransport() if inner is None else inner
        self._routers = RouterList(routers)
        self._policy = ResumePolicy(max_outage_s, silence_s)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Return the response. Raises TransportError after the last attempt."""
        if not is_generation(request):
            return await self._inner.handle_async_request(request)
        await request.aread()
        resuming = ResumingStream(request, self._routers, self._policy)
        while True:
            response = await self._open(resuming)
            if not resuming.is_resumable(response):
                return response
            if resuming.is_event_stream(response):
                body = _ResumingBody(resuming, response, self._open)
                return httpx.Response(200, headers=response.headers, stream=body, extensions=response.extensions)
            try:
                await response.aread()
                return response
            except httpx.TransportError as error:
                await response.aclose()
                resuming.lose(error)

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()

    async def _open(self, resuming: ResumingStream) -> httpx.Response:
        """Send the request until a response can be passed to the client."""
        while True:
            await anyio.sleep(resuming.delay_s)
            try:
                response = await self._inner.handle_async_request(resuming.attempt())
                if response.status_code != 200:
                    await response.aread()
            except httpx.TransportError as error:
                resuming.lose(error)
                continue
            if resuming.accept(response):
                return response
            await response.aclose()
            resuming.refuse(response)


class _ResumingBody(httpx.AsyncByteStream):
    """Body of the client's response, joined from the bodies of all attempts. Owns the latest attempt's response."""

    def __init__(
        self,
        resuming: ResumingStream,
        response: httpx.Response,
        reopen: Callable[[ResumingStream], Awaitable[httpx.Response]],
    ) -> None:
        self._resuming = resuming
        self._response = response
        self._reopen = reopen

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            try:
                async for chunk in self._response.aiter_raw():
                    if events := self._resuming.receive(chunk):
                        yield events
                self._resuming.end()
                return
            except httpx.TransportError as error:
                await self._response.aclose()
                if self._resuming.is_over:
                    return
                self._resuming.lose(error)
            self._response = await self._reopen(self._resuming)

    async def aclose(self) -> None:
        await self._response.aclose()
