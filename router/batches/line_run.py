"""One request of a batch: from its body to the exchange with its response."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import orjson

from baton.router.auth.client import Client, Gate
from baton.router.batches.exchange import LineExchange
from baton.router.batches.held_bytes import HeldBytes
from baton.router.errors import FieldError, KeyLimitReached
from baton.router.http.body_route import BodyRoute
from baton.router.openai.errors import error_body, error_response

RETRIED = (429, 503)


class LineRunner:
    """Runs requests of batches through the same handlers as those of connections."""

    def __init__(self, gate: Gate, posts: Mapping[str, BodyRoute[Any]]) -> None:
        """`posts`: handlers by path."""
        self._gate = gate
        self._posts = posts
        self._held = HeldBytes()

    def client(self, key_name: str | None) -> Client:
        """Return the client that created a batch, with the current limits of its key. Raises Unauthenticated."""
        return replace(self._gate.named(key_name), is_deferred=True)

    async def run(self, endpoint: str, client: Client, body: bytes, stream: bool) -> LineExchange:
        """Return the exchange with the response, which may be an error.

        `body`: JSON; `stream`: whether it asks for a stream.
        """
        exchange = LineExchange(client, body, self._held)
        del body  # the exchange frees it
        try:
            await self._run(endpoint, exchange, stream)
        finally:
            exchange.end()
        return exchange

    async def _run(self, endpoint: str, exchange: LineExchange, stream: bool) -> None:
        try:
            exchange.client.begin()
            if stream:
                raise FieldError("stream", "stream is not supported in a batch; omit it")
        except (KeyLimitReached, FieldError) as error:
            response = error_response(error)
            await exchange.respond(response.status_code, bytes(response.body), response.headers)
        else:
            await self._posts[endpoint].serve(exchange)
            if not exchange.started:
                text = "the request ended without a response"
                await exchange.respond(500, orjson.dumps(error_body(text, "internal_server_error", None, 500)))
