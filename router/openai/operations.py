"""Routes for operators and monitoring: models, health, readiness, metrics, workers."""

from importlib import metadata

import orjson
from fastapi import Request
from starlette.responses import Response

from baton.router.http.paced_response import PacedResponse
from baton.router.limits import check_model
from baton.router.openai.errors import RETRY_AFTER_S, error_body
from baton.router.service import RouterService
from baton.router.shared_result import SharedResult
from baton.router.workers.connection import ROLES, WorkerConnection
from baton.router.workers.connection_state import ConnectionState


class OperationsApi:
    """Handler of requests for the router's state.

    They often need no API key, so concurrent requests share the results that take longer with more workers.
    """

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._version = metadata.version("baton-serve")
        self._readiness = SharedResult(self._read_readiness)
        self._workers = SharedResult(self._read_workers)
        self._pools = SharedResult(self._read_pools)

    async def models(self) -> Response:
        """Return the list of the one served model."""
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, name: str) -> Response:
        """Return the served model. Raises NotFound if it has another name."""
        check_model(self._service.model.name, name)
        return _json(self._model())

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
        draining = self._service.admission.draining
        message = "the router is shutting down" if draining else "no decode worker is ready"
        body = error_body(message, "service_unavailable_error", None, 503)
        return Response(orjson.dumps(body), 503, {"retry-after": RETRY_AFTER_S}, "application/json")

    async def metrics(self, request: Request) -> Response:
        """Return the metrics as Prometheus text, or as OpenMetrics if the client accepts it."""
        page = await self._service.metrics_page.text(request.headers.get("accept", ""))
        return self._page(page.content, page.media_type)

    async def workers(self) -> Response:
        """Return the state of the router, of every worker and of supervised processes."""
        return self._page(await self._workers.get())

    async def pools(self) -> Response:
        """Return the router's report on its traffic and its workers, for autoscalers."""
        return self._page((await self._pools.get()).encode())

    def _page(self, content: bytes, media_type: str = "application/json") -> Response:
        """Return a response whose size grows with the number of workers."""
        return PacedResponse(content, media_type, self._service.unread, None)

    async def _read_readiness(self) -> dict[str, object] | None:
        if not self._service.is_ready():
            return None
        pool = self._service.pool
        status = "degraded" if pool.is_degraded else "ready"
        return {"status": status, "registry": "lost" if pool.view.error else "connected"}

    async def _read_pools(self) -> str:
        return self._service.reporter.text()

    async def _read_workers(self) -> bytes:
        service = self._service
        router = {
            "model": service.model.name,
            "policy": service.config.policy,
            "process": service.config.process,
            "ready": service.is_ready(),
            "degraded": service.pool.is_degraded,
            "unlearnt": service.pool.unlearnt,
            "draining": service.admission.draining,
            "inflight": service.admission.num_inflight,
            "registry": self._registry(),
        }
        workers = [self._worker(each) for each in service.pool.connections]
        processes = [state.report() for state in service.processes.read()]
        return orjson.dumps({"router": router, "workers": workers, "processes": processes})

    def _model(self) -> dict[str, object]:
        model = self._service.model
        return {
            "id": model.name,
            "object": "model",
            "created": model.created_s,
            "owned_by": "baton",
            "root": model.name,
            "parent": None,
            "max_model_len": self._service.pool.max_model_len(),
        }

    def _registry(self) -> dict[str, object]:
        pool = self._service.pool
        return {
            "name": pool.registry.name,
            "connected": pool.view.error is None,
            "error": pool.view.error,
            "members": len(pool.view.members) + len(pool.view.fixed),
        }

    def _worker(self, connection: WorkerConnection) -> dict[str, object]:
        body: dict[str, object] = {
            "address": connection.address,
            "state": connection.state.value,
            "listed": connection.is_listed,
        }
        description = connection.description
        if description is None or connection.state is ConnectionState.CONNECTING:  # no load report yet
            return {**body, "worker_id": None, "role": None, "last_error": connection.last_error}
        load = connection.load.reported
        fields = load.DESCRIPTOR.fields_by_name
        return {
            **body,
            "worker_id": description.worker_id,
            "role": ROLES[description.role].value,
            "incarnation": description.incarnation,
            "model": description.model,
            "fingerprint": description.fingerprint,
            "block_size": description.block_size,
            "max_model_len": description.max_model_len,
            "transport": description.transport,
            "transports": sorted(description.pool.endpoints),
            "cached_blocks": self._service.pool.index.num_blocks(description.incarnation),
            "inflight": connection.load.num_own_requests,
            "load": {name: getattr(load, name) for name in fields if name != "peer_transports"},
            "peer_transports": dict(load.peer_transports),
        }


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
