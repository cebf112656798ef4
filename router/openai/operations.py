"""Routes for operators and monitoring: models, health, readiness, metrics, workers."""

import asyncio
import re
from collections.abc import Collection, Sequence
from functools import partial
from importlib import metadata

import orjson
from fastapi import Request
from google.protobuf.message import Message
from starlette.responses import Response

from baton.router.errors import FieldError, UnknownTimeline
from baton.router.http.headers import read_headers
from baton.router.http.paced_response import PacedResponse
from baton.router.index.prefix_index import stores_of
from baton.router.openai.errors import RETRY_AFTER_S, error_body
from baton.router.pins.worker_pins import cleared
from baton.router.served_model import ServedModel
from baton.router.service import RouterService
from baton.router.shared_result import SharedResult
from baton.router.workers.connection import ROLES, WorkerConnection
from baton.router.workers.connection_state import ConnectionState
from baton.router.workers.pool import WorkerPool
from baton.settings.values import shown

UNIX_TIME = re.compile(r"[0-9]{1,12}(\.[0-9]{1,12})?")
IN_OTHER_FIELDS = ("peer_transports", "tiers", "completed_handovers", "weights_offload", "experts")  # of a worker


class OperationsApi:
    """Handler of requests for the router's state.

    They often need no API key, so concurrent requests share the results that take longer with more workers.
    """

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._version = metadata.version("baton-serve")
        self._readiness = SharedResult(self._read_readiness)
        self._workers = SharedResult(self._read_workers)
        self._pools = {model.name: SharedResult(partial(_read_pools, model)) for model in service.models}

    async def models(self) -> Response:
        """Return the list of the served models and their adapters."""
        models = list(self._service.models)
        data = [*map(_model, models), *(card for model in models for card in _adapters(model))]
        return _json({"object": "list", "data": data})

    async def model(self, name: str) -> Response:
        """Return a served model or adapter. Raises NotFound."""
        return _json(_model(self._service.models.named(name)))

    async def health(self) -> Response:
        """Return 200: the process is alive."""
        return Response(status_code=200)

    async def version(self) -> Response:
        """Return the server's version, in vLLM's shape."""
        return _json({"version": self._version})

    async def ready(self) -> Response:
        """Return 200 if a request would be served now, otherwise 503. `degraded`: the router lacks information."""
        content = await self._readiness.get()
        if content is not None:
            return _json(content)
        message = "the router is shutting down" if self._service.draining else "no decode worker is ready"
        if not all(model.pins.is_settled for model in self._service.models):
            message = "the workers are computing the prefixes of pin_prefix"
        body = error_body(message, "service_unavailable_error", None, 503)
        return Response(orjson.dumps(body), 503, {"retry-after": RETRY_AFTER_S}, "application/json")

    async def metrics(self, request: Request) -> Response:
        """Return the metrics as Prometheus text, or as OpenMetrics if the client accepts it."""
        page = await self._service.metrics_page.text(request.headers.get("accept", ""))
        return self._page(page.content, page.media_type)

    async def workers(self) -> Response:
        """Return the state of the router, of every worker and of supervised processes."""
        return self._page(await self._workers.get())

    async def reset_prefix_cache(self, request: Request, model: str | None = None, tier: str = "") -> Response:
        """Have the workers of a model, or of all, forget the cached blocks that nothing holds; vLLM's path.

        `tier`: the name of a store below their KV caches, whose blocks are deleted instead.

        Raises Forbidden if the client's key may not, NotFound, or WorkerLost if a worker does not respond.
        """
        client = self._service.gate.client(read_headers(request.scope["headers"]))
        client.begin()
        client.check_admin()
        models = list(self._service.models) if model is None else [self._service.models.named(model)]
        found = await asyncio.gather(*(cleared(each.pool, tier) for each in models))
        return _json(
            {"object": "cache.clear", "blocks": {name: count for each in found for name, count in each.items()}}
        )

    async def timeline(self, request: Request, request_id: str, begun_at: str | None = None) -> Response:
        """Return the timeline of a running or recent request of the client's tenant.

        `begun_at`: of several requests with this id, return the one that began nearest to this Unix time; None: the
        last one. Raises UnknownTimeline, or FieldError for a time that is no number.
        """
        recording = self._service.recording
        if recording is None or recording.timelines is None:
            raise UnknownTimeline("this router keeps no timelines; start it with --keep-timelines 1000")
        client = self._service.gate.client(read_headers(request.scope["headers"]))
        found = await recording.find(client, request_id, _unix_time(begun_at))
        if found is None:
            raise UnknownTimeline("the request is unknown, or older than those that are kept")
        return self._page(orjson.dumps(found))

    async def pools(self, model: str | None = None) -> Response:
        """Return the router's report on the traffic and the workers of a model, for autoscalers.

        Raises NotFound, or FieldError if there are several models and the request names none.
        """
        name = self._service.models.named(model).info.name  # an adapter has the workers of its model
        return self._page((await self._pools[name].get()).encode())

    def _page(self, content: bytes, media_type: str = "application/json") -> Response:
        """Return a response whose size grows with the number of workers."""
        return PacedResponse(content, media_type, self._service.unread, None)

    async def _read_readiness(self) -> dict[str, object] | None:
        if not self._service.is_ready():
            return None
        models = list(self._service.models)
        is_degraded = self._service.models.is_degraded or not all(model.is_ready() for model in models)
        is_lost = any(model.pool.view.error for model in models)
        return {"status": "degraded" if is_degraded else "ready", "registry": "lost" if is_lost else "connected"}

    async def _read_workers(self) -> bytes:
        service, models = self._service, list(self._service.models)
        router = {
            "model": ", ".join(service.models.names),
            "policy": service.config.policy,
            "process": service.config.process,
            "ready": service.is_ready(),
            "degraded": service.models.is_degraded,
            "unlearnt": [address for model in models for address in model.pool.unlearnt],
            "draining": service.draining,
            "inflight": service.models.num_inflight,
            "registry": _registry([model.pool for model in models]),
            "models": [_state(model) for model in models],
        }
        workers = [_worker(model.pool, each) for model in models for each in model.pool.connections]
        processes = [state.report() for state in service.processes.read()]
        return orjson.dumps({"router": router, "workers": workers, "processes": processes})


def _model(model: ServedModel) -> dict[str, object]:
    adapter = model.adapter
    return {
        "id": model.name,
        "object": "model",
        "created": model.info.created_s if adapter is None else adapter.created_s,
        "owned_by": "baton",
        "root": model.name if adapter is None else adapter.path,
        "parent": None if adapter is None else model.info.name,
        "max_model_len": model.pool.max_model_len(),
    }


def _adapters(model: ServedModel) -> list[dict[str, object]]:
    adapters = () if model.catalog is None else model.catalog.adapters
    return [_model(model.with_adapter(adapter)) for adapter in adapters]


def _state(model: ServedModel) -> dict[str, object]:
    """Return the state of one model, of which the router's is the sum."""
    return {
        "model": model.name,
        "ready": model.is_ready(),
        "degraded": model.pool.is_degraded,
        "inflight": model.admission.num_inflight,
        "waiting": model.admission.num_waiting,
        "autoscaler": model.plan.latest,  # None: it has none, or it does not plan now
    }


def _registry(pools: Sequence[WorkerPool]) -> dict[str, object]:
    """Return the state of the registry. Each pool follows it for itself; a loss counts if one of them notices it."""
    pool = next((each for each in pools if each.view.error), pools[0])
    return {
        "name": pool.registry.name,
        "connected": pool.view.error is None,
        "error": pool.view.error,
        "members": len(pool.view.members) + len(pool.view.fixed),
    }


def _worker(pool: WorkerPool, connection: WorkerConnection) -> dict[str, object]:
    body: dict[str, object] = {
        "address": connection.address,
        "state": connection.state.value,
        "listed": connection.is_listed,
    }
    description = connection.description
    if description is None or connection.state is ConnectionState.CONNECTING:  # no load report yet
        return {**body, "worker_id": None, "role": None, "last_error": connection.last_error}
    load = connection.load.reported
    return {
        **body,
        "worker_id": description.worker_id,
        "role": ROLES[description.role].value,
        "incarnation": description.incarnation,
        "model": description.model,
        "fingerprint": description.fingerprint,
        "block_size": description.block_size,
        "block_bytes": description.pool.block_bytes * max(1, description.num_ranks),
        "max_model_len": description.max_model_len,
        "transport": description.transport,
        "transports": sorted(description.pool.endpoints),
        "cached_blocks": pool.index.num_blocks(description.incarnation),
        "stored_blocks": pool.index.num_blocks(stores_of(description.incarnation)),
        "inflight": connection.load.num_own_requests,
        "load": _fields(load, without=IN_OTHER_FIELDS),
        "adapters": {"max_loras": description.adapters.max_loras, "loaded": dict(connection.load.adapters)},
        "peer_transports": dict(load.peer_transports),
        "kv_tiers": [_fields(tier) for tier in load.tiers],
        "weights_offload": _fields(load.weights_offload) if load.HasField("weights_offload") else None,
        "experts": _fields(load.experts) if load.HasField("experts") else None,
    }


def _unix_time(text: str | None) -> float | None:
    if text is not None and UNIX_TIME.fullmatch(text) is None:
        raise FieldError("begun_at", f"begun_at is {shown(text)}, but must be a Unix time, such as 1764351234.5")
    return None if text is None else float(text)


def _fields(message: Message, without: Collection[str] = ()) -> dict[str, object]:
    """Return a message's fields by name, repeated numbers as lists."""
    values = {name: getattr(message, name) for name in message.DESCRIPTOR.fields_by_name if name not in without}
    return {name: value if isinstance(value, int | float | str) else list(value) for name, value in values.items()}


async def _read_pools(model: ServedModel) -> str:
    return model.reporter.text()


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
