"""Tables of endpoints: HTTP paths and gRPC methods, and which of them need an API key."""

from collections.abc import Mapping

from starlette.routing import Route

from baton.protos import open_inference_pb2, router_pb2
from baton.router.auth.client import OPEN_PATHS, OPEN_PREFIXES, OPERATIONS_PATHS
from baton.router.http.app import HttpApp
from baton.router.kserve.grpc_service import OPEN_METHODS
from baton.router.service import RouterService
from scripts.reference.router import read_router
from scripts.reference.tables import code, table

YES, NO, OPERATIONS = "yes", "no", "with `--protect-operations`"
MEANINGS: Mapping[str, str] = {  # by path, or by method and path
    "/": "sends browsers to the [console](../console.md); for other clients an index of paths",
    "/console": "the [web console](../console.md): its page, which asks for a key if it needs one",
    "/console/assets/{name}": "files of that page",
    "/console/events": "the state that it shows, as events; needs an admin key if there are keys",
    "/console/workers/{action}": "drains or undrains a worker, or changes its role, for the console",
    "/v1/chat/completions": "a chat completion, whole or streamed ([fields](../api.md#fields))",
    "/v1/completions": "a completion of a text or of tokens, whole or streamed",
    "/v1/messages": "Anthropic's [Messages API](../api.md#anthropics-messages-api)",
    "/v1/messages/count_tokens": "number of tokens of such a request",
    "/v1/embeddings": "[embeddings](../api.md#embeddings) of texts or tokens",
    "/v1/responses": "a [response](../api.md#responses), whole or streamed",
    "GET /v1/responses/{response_id}": "a [stored response](../api.md#stored-responses)",
    "DELETE /v1/responses/{response_id}": "deletes a stored response",
    "/v1/responses/{response_id}/input_items": "the items from which a response was generated",
    "/v1/responses/{response_id}/cancel": "always 400: no response runs in the background",
    "POST /v1/files": "uploads a [file](../api.md#batches)",
    "GET /v1/files": "lists the files",
    "GET /v1/files/{file_id}": "describes a file",
    "DELETE /v1/files/{file_id}": "deletes a file",
    "/v1/files/{file_id}/content": "content of a file",
    "POST /v1/batches": "begins a [batch](../api.md#batches)",
    "GET /v1/batches": "lists the batches",
    "/v1/batches/{batch_id}": "state of a batch",
    "/v1/batches/{batch_id}/cancel": "cancels a batch",
    "POST /v1/cache/pins": "pins a [prefix](../pins.md)",
    "GET /v1/cache/pins": "lists the pins",
    "/v1/cache/pins/{pin_id}": "releases a pin",
    "/reset_prefix_cache": "has the workers forget cached blocks that nothing holds; `baton cache clear`",
    "/v1/load_lora_adapter": "loads a [LoRA adapter](../lora.md#loading-and-unloading) at all workers",
    "/v1/unload_lora_adapter": "unloads a LoRA adapter",
    "/tokenize": "tokens of a text or of messages, in vLLM's shape",
    "/detokenize": "text of tokens, in vLLM's shape",
    "/v1/models": "the served models",
    "/v1/models/{name}": "one served model",
    "/health": "200 while the process is alive",
    "/ping": "200 while the process is alive",
    "/ready": "200 if a request would be served now, otherwise 503",
    "/version": "the server's version",
    "/metrics": "[metrics](metrics.md) as Prometheus text, or OpenMetrics if `accept` asks for it",
    "/workers": "state of the router, of each worker and of supervised processes; `baton status` prints it",
    "/timelines/{request_id}": "where the time of a [request](../tracing.md#timelines) went; `baton trace` draws it",
    "/pools": "the router's report on traffic and workers, for autoscalers",
    "/openapi.json": "description of every field, bound, status and response",
    "/docs": "the description as a page, by Swagger UI; it loads nothing from other hosts",
    "/docs/assets/{name}": "files of that page",
    "/redoc": "leads to `/docs`",
    "/v2": "[KServe's protocol](../api.md#kserve-and-triton): the server",
    "/v2/health/live": "200 while the process is alive",
    "/v2/health/ready": "200 if a request would be served now, otherwise 503",
    "/v2/repository/index": "the models and their states",
    "/v2/models/{name}": "inputs and outputs of a model",
    "/v2/models/{name}/ready": "200 if the model can serve a request now, otherwise 503",
    "/v2/models/{name}/config": "a model's configuration, in Triton's shape",
    "/v2/models/{name}/infer": "an inference with tensors, in JSON or binary",
    "/v2/models/{name}/generate": "an inference with a JSON object of fields",
    "/v2/models/{name}/generate_stream": "the same, as events",
}
METHODS: Mapping[str, str] = {
    "Generate": "a generation from a text or from tokens, as a stream",
    "ServerLive": "whether the process is alive",
    "ServerReady": "whether a request would be served now",
    "ModelReady": "whether the model can serve a request now",
    "ServerMetadata": "the server and its extensions",
    "ModelMetadata": "inputs and outputs of a model",
    "ModelInfer": "an inference with a whole response",
    "ModelStreamInfer": "inferences on one stream, with several responses each",
    "ModelConfig": "a model's configuration, in Triton's shape",
    "RepositoryIndex": "the models and their states",
}


def http_endpoints() -> str:
    """Return the table of the router's paths. Raises KeyError for a path without a meaning."""
    return read_router(_of_app)


def grpc_endpoints() -> str:
    """Return the table of the router's gRPC methods. Raises KeyError for a method without a meaning."""
    services = (
        router_pb2.DESCRIPTOR.services_by_name["Inference"],
        open_inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"],
    )
    rows = [
        (code(f"{service.full_name}/{each.name}"), NO if each.name in OPEN_METHODS else YES, METHODS[each.name])
        for service in services
        for each in service.methods
    ]
    return table(("method", "API key", "meaning"), rows)


def _of_app(_service: RouterService, app: HttpApp) -> str:
    methods: dict[str, set[str]] = {}
    for route in app._others.routes:
        assert isinstance(route, Route)
        path = route.path.replace(":path}", "}").replace("/versions/{version}", "")
        methods.setdefault(path, set()).update(route.methods or ())
    rows = []
    for path, found in sorted(methods.items()):
        by_meaning: dict[str, list[str]] = {}
        for method in sorted(found - {"HEAD"}):
            by_meaning.setdefault(MEANINGS.get(f"{method} {path}") or MEANINGS[path], []).append(method)
        rows += [(", ".join(names), code(path), _key(path), meaning) for meaning, names in by_meaning.items()]
    return table(("method", "path", "API key", "meaning"), rows)


def _key(path: str) -> str:
    return (
        NO if path in OPEN_PATHS or path.startswith(OPEN_PREFIXES) else OPERATIONS if path in OPERATIONS_PATHS else YES
    )
