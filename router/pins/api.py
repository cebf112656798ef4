"""The routes of `/v1/cache/pins`."""

import asyncio
import time
import uuid
from collections.abc import Sequence

import orjson
from fastapi import FastAPI, Request
from starlette.responses import Response

from baton.router.auth.client import Client
from baton.router.errors import PinNotFound
from baton.router.http.exchange import Exchange
from baton.router.http.headers import read_context, read_headers
from baton.router.inline_work import InlineWork
from baton.router.pins.pin import Pin, Prefix
from baton.router.pins.placement import prefix_generation
from baton.router.pins.request import PinRequest
from baton.router.pins.response_models import PinObject
from baton.router.pins.worker_pins import WorkerPin, listed
from baton.router.request_context import RequestContext
from baton.router.served_model import ServedModel
from baton.router.service import RouterService
from baton.settings.names import is_name

PINS, PIN = "/v1/cache/pins", "/v1/cache/pins/{pin_id:path}"


class PinsApi:
    """Handler of requests for pins. A client sees those of its own tenant alone."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._inline = InlineWork()

    async def create(self, body: PinRequest, exchange: Exchange) -> None:
        """Compute a prefix and hold its KV."""
        body.check()
        model, client = await self._service.models.find(body.model), exchange.client
        context = read_context(exchange.headers, None, 0, client, self._service.config.default_timeout_s)
        async with exchange.watch(), client.hold(1), model.admission.admit(1, context):
            pin = await self._pin(model, body, client, context)
            generation = await prefix_generation(model.pipeline, pin, context)
            client.charge(pin.num_tokens)
            exchange.forget_body(generation.num_pixel_bytes)
            await model.pins.take(pin, generation)
            found = (each for each in await _shown(model, client) if each["id"] == pin.name)
            ended = _object(pin.name, model.name, time.time())  # a short time may have passed
            await exchange.respond(200, orjson.dumps(next(found, ended)))

    async def list(self, request: Request) -> Response:
        """Return the pins."""
        client = self._begin(request)
        models = list(self._service.models)
        found = await asyncio.gather(*(_shown(model, client) for model in models))
        return _json({"object": "list", "data": [pin for pins in found for pin in pins]})

    async def delete(self, pin_id: str, request: Request) -> Response:
        """Release a pin, whichever router has taken it."""
        client = self._begin(request)
        was_pinned = False
        for model in self._service.models if is_name(pin_id) else ():
            was_pinned |= await model.pins.delete(client.tenant_id, pin_id)
        if not was_pinned:
            raise PinNotFound(f"There is no pin '{pin_id[:128]}', or its time has passed.")
        return _json({"id": pin_id, "object": "cache.pin", "deleted": True})

    def _begin(self, request: Request) -> Client:
        client = self._service.gate.client(read_headers(request.scope["headers"]))
        client.begin()
        return client

    async def _pin(self, model: ServedModel, body: PinRequest, client: Client, context: RequestContext) -> Pin:
        """Return the pin, tokenised. Raises InvalidRequest."""
        source = await body.source(self._inline, model.pipeline.context_len())
        salt = client.cache_salt(body.cache_salt or "")
        token_ids, images = await model.pipeline.tokenize_with_images(
            source, body.adds_special_tokens, salt, context.fairness_key
        )
        share = None if client.key is None else client.key.max_pinned_fraction
        return Pin(
            name=body.id or f"pin-{uuid.uuid4().hex[:16]}",
            owner=client.tenant_id,
            prefix=Prefix.of(token_ids, salt, model.adapter, images),
            expires_s=time.monotonic() + body.ttl_seconds,
            max_share=share or 0.0,
        )


async def _shown(model: ServedModel, client: Client) -> Sequence[PinObject]:
    """Return the client's pins: those that workers hold, and those that this router is placing anew.

    Workers do not report a pin's adapter: those that other routers have taken have the name of the model.
    """
    shown: dict[str, PinObject] = {}
    for own in model.pins.of(client.tenant_id):
        name = model.info.name if own.prefix.adapter is None else own.prefix.adapter.name
        shown[own.name] = _object(own.name, name, time.time() + own.ttl_s())
    for each in await listed(model.pool, client.tenant_id):
        held = each.pin
        pin = shown.setdefault(held.name, _object(held.name, model.info.name, time.time() + held.ttl_s))
        _add(pin, each)
    return list(shown.values())


def _object(name: str, model: str, expires_at: float) -> PinObject:
    return {
        "id": name,
        "object": "cache.pin",
        "model": model,
        "tokens": 0,
        "blocks": 0,
        "bytes": 0,
        "workers": [],
        "expires_at": round(expires_at, 3),
    }


def _add(pin: PinObject, held: WorkerPin) -> None:
    pin["tokens"] = max(pin["tokens"], held.pin.num_tokens)
    pin["blocks"] += held.pin.num_blocks
    pin["bytes"] += held.pin.num_bytes
    pin["workers"].append(held.worker_id)


def add_pin_routes(app: FastAPI, service: RouterService) -> None:
    """Add the paths of requests without a body."""
    api = PinsApi(service)
    for path, method, serve in ((PINS, "GET", api.list), (PIN, "DELETE", api.delete)):
        app.add_api_route(path, serve, methods=[method], response_class=Response, response_model=None)


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
