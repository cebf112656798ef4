"""/openapi.json: FastAPI's description with the bodies, responses and security of every path."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from pydantic import BaseModel, TypeAdapter

from baton.router.anthropic import response_models as anthropic
from baton.router.batches import response_models as batches
from baton.router.embeddings.response import EmbeddingList
from baton.router.files import response_models as files
from baton.router.kserve import response_models as kserve
from baton.router.openai import response_models as bodies
from baton.router.openai.fields import COMPLETIONS, STOP_STRINGS
from baton.router.openai.prompts import PROMPTS, TOKEN_ID
from baton.router.pins import response_models as pins
from baton.router.responses import response_models as responses
from baton.router.service import RouterService
from baton.router.tracing.timeline import Timeline
from baton.rpc.metrics_format import OPENMETRICS

Json = dict[str, Any]
PATH_PARAMETER = re.compile(r"{(\w+)}")

JSON, EVENTS, TEXT, BYTES = "application/json", "text/event-stream", "text/plain", "application/octet-stream"
FILE_CONTENT = "/v1/files/{file_id}/content"
BODIES: Mapping[str, Any] = {
    "/v1/chat/completions": bodies.ChatCompletion,
    "/v1/completions": bodies.Completion,
    "/v1/messages": anthropic.OutputMessage,
    "/v1/messages/count_tokens": anthropic.TokenCount,
    "/v1/embeddings": EmbeddingList,
    "/v1/responses": responses.ResponseBody,
    "/v1/responses/{response_id}": responses.ResponseBody,
    "DELETE /v1/responses/{response_id}": responses.DeletedResponse,
    "/v1/responses/{response_id}/input_items": responses.ItemList,
    "POST /v1/files": files.FileObject,
    "/v1/files": files.FileList,
    "/v1/files/{file_id}": files.FileObject,
    "DELETE /v1/files/{file_id}": files.DeletedFile,
    "/v1/batches": batches.BatchObject,
    "GET /v1/batches": batches.BatchList,
    "/v1/batches/{batch_id}": batches.BatchObject,
    "/v1/batches/{batch_id}/cancel": batches.BatchObject,
    "/v1/cache/pins": pins.PinObject,
    "GET /v1/cache/pins": pins.PinList,
    "/v1/cache/pins/{pin_id}": pins.DeletedPin,
    "/reset_prefix_cache": pins.ClearedCache,
    "/tokenize": bodies.Tokenized,
    "/detokenize": bodies.Detokenized,
    "/v1/models": bodies.Models,
    "/v1/models/{name}": bodies.Model,
    "/ready": bodies.Readiness,
    "/workers": bodies.Workers,
    "/pools": dict[str, object],
    "/timelines/{request_id}": Timeline,
    "/version": dict[str, str],
    **kserve.GETS,
    **kserve.POSTS,
    kserve.INDEX: list[kserve.IndexedModel],
}
CHUNKS: Mapping[str, Any] = {
    "/v1/chat/completions": bodies.ChatCompletionChunk,
    "/v1/completions": bodies.Completion,
    "/v1/messages": anthropic.MessageEvent,
    "/v1/responses": responses.ResponseEvent,
    **kserve.EVENTS,
}
MESSAGE_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
MODEL_ERRORS: Mapping[int, str] = {404: "The model or its version does not exist."}
POST_ERRORS: Mapping[int, str] = {
    400: "The body or a header is not as described, or the request does not fit the model's context.",
    404: "The model does not exist.",
    408: "The request was not received in time.",
    409: "A stream cannot be resumed at the client's position, or another router has taken the request over.",
    413: "The body is too large, or has too many parts.",
    415: "The body is not declared as JSON, or has another content-encoding than gzip.",
    429: "The router is full, or the API key has used up its limit; `retry-after` has the seconds to wait.",
    499: "The request was cancelled.",
    500: "The server failed.",
    503: "No worker can serve the request now.",
    504: "The request exceeded its time limit.",
}
ADMIN_PATHS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
ADMIN_ERRORS: Mapping[int, str] = {
    400: "The body is not as described, or a worker cannot load the adapter.",
    403: "The API key is not an administrator's.",
    404: "There is no such adapter, or the server loads none.",
}
STORED_ERRORS: Mapping[int, str] = {
    400: "A query parameter is not as described, or the operation is not supported.",
    404: "The response does not exist, or not for this API key.",
    429: "The API key has used up its limit; `retry-after` has the seconds to wait.",
    503: "The stored responses cannot be reached now.",
}
FILE_ERRORS: Mapping[int, str] = {
    400: "A field or a query parameter is not as described, or there is no room for the file.",
    404: "The file or batch does not exist, or not for this API key; or the server stores none.",
    409: "A batch that has not ended needs the file.",
    415: "The body has a content-encoding.",
    429: "The API key has used up its limit, or there are too many uploads; `retry-after` has the seconds to wait.",
    503: "The folder of the files cannot be used now.",
}
KEY_LIMIT = "The API key has used up its limit; `retry-after` has the seconds to wait."
GET_ERRORS: Mapping[str, Mapping[int, str]] = {
    "/v1/models/{name}": {404: "The model does not exist."},
    "/pools": {400: "The model is not named, but there are several.", 404: "The model does not exist."},
    "/ready": {503: "No request would be served now."},
    "/timelines/{request_id}": {400: "`begun_at` is no Unix time.", 404: "No timeline of the request is kept."},
    "/v1/responses/{response_id}": STORED_ERRORS,
    "/v1/responses/{response_id}/input_items": STORED_ERRORS,
    "/v1/responses/{response_id}/cancel": STORED_ERRORS,
    **dict.fromkeys(("/v1/files", "/v1/files/{file_id}", FILE_CONTENT), FILE_ERRORS),
    **dict.fromkeys(("/v1/batches", "/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"), FILE_ERRORS),
    "/v1/cache/pins": {429: KEY_LIMIT},
    "/v1/cache/pins/{pin_id}": {
        404: "There is no such pin, or not for this API key.",
        429: KEY_LIMIT,
        503: "A worker that may hold the pin does not respond.",
    },
    "/reset_prefix_cache": {
        403: "The API key may not clear the caches of all tenants.",
        404: "The model, or the tier of a worker, does not exist.",
        429: KEY_LIMIT,
        503: "A worker does not respond.",
    },
    "/v2/health/ready": {503: "No request would be served now."},
    **{path: MODEL_ERRORS for path in kserve.GETS if "{name}" in path},
    **{
        path: {**MODEL_ERRORS, 503: "No request would be served now."}
        for path in kserve.GETS
        if path.endswith("}/ready")
    },
}


class Description:
    """Completes FastAPI's description of one router."""

    def __init__(self, service: RouterService, posts: Mapping[str, type[BaseModel]]) -> None:
        """`posts`: the model of each path's request body."""
        self._gate = service.gate
        self._posts = posts
        config, vocab_size = service.config, max(model.info.vocab_size for model in service.models)
        self._model_names = service.models.names
        self._has_adapters = bool(service.models.catalogs)
        max_choices = config.max_completions
        self._bounds: Mapping[str, tuple[str, int]] = {  # by the title of a type
            TOKEN_ID: ("maximum", vocab_size - 1),
            COMPLETIONS: ("maximum", max_choices),
            PROMPTS: ("maxItems", max_choices),
            STOP_STRINGS: ("maxItems", config.max_stop),
        }

    def complete(self, schema: Json) -> Json:
        """Complete FastAPI's schema in place."""
        types: set[Any] = {bodies.ErrorBody, anthropic.MessageError, kserve.KServeError, *self._posts.values()}
        types = types.union(BODIES.values(), CHUNKS.values())
        adapters = [(each, "validation", TypeAdapter(each)) for each in types]
        references, definitions = TypeAdapter.json_schemas(
            adapters,  # type: ignore[arg-type]  # a list of tuples of literals
            ref_template="#/components/schemas/{model}",
        )
        known = {each: references[each, "validation"] for each in types}
        self._add_bounds(definitions["$defs"])
        if len(self._model_names) > 1:
            self._require_model(definitions["$defs"])
        schema["components"] = {
            "schemas": definitions["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "An API key."},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "An API key."},
            },
        }
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                named = f"{method.upper()} {path}"
                found = self._responses(path, known, GET_ERRORS.get(path, {}), named if named in BODIES else path)
                operation["responses"] = found
                operation["security"] = self._security(path)
        for path in kserve.GETS:
            schema["paths"][path] = {"get": self._operation(path, known, GET_ERRORS.get(path, {}))}
        schema["paths"][kserve.INDEX] = {"post": self._operation(kserve.INDEX, known, {})}
        for path, model in self._posts.items():
            schema["paths"].setdefault(path, {})["post"] = self._post(path, model, known)
        return schema

    def _require_model(self, definitions: Json) -> None:
        """Describe that requests name one of several models."""
        for body in self._posts.values():
            schema = definitions[body.__name__]
            if "model" in schema["properties"]:
                names = {"type": "string"} if self._has_adapters else {"enum": list(self._model_names)}
                schema["properties"]["model"] = {"title": "Model", **names}
                schema["required"] = ["model", *schema.get("required", ())]

    def _post(self, path: str, model: type[BaseModel], known: Mapping[Any, Json]) -> Json:
        return {
            "summary": (model.__doc__ or "").partition("\n")[0],
            "requestBody": {"content": {JSON: {"schema": known[model]}}, "required": True},
            **self._operation(path, known, {**POST_ERRORS, **ADMIN_ERRORS} if path in ADMIN_PATHS else POST_ERRORS),
        }

    def _operation(self, path: str, known: Mapping[Any, Json], errors: Mapping[int, str]) -> Json:
        operation: Json = {
            "operationId": path.translate(str.maketrans("/", "_", "{}")).strip("_"),
            "responses": self._responses(path, known, errors, path),
            "security": self._security(path),
        }
        if names := PATH_PARAMETER.findall(path):
            operation["parameters"] = [
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
            ]
        return operation

    def _responses(self, path: str, known: Mapping[Any, Json], errors: Mapping[int, str], body: str) -> Json:
        """`body`: key of the response's body in `BODIES`."""
        found: Json = {"200": {"description": "The response.", **self._content(body, known)}}
        needs_key = {} if self._gate.is_open(path) else {401: "The API key is missing or unknown."}
        error = known[_error_body(path)]
        for status, text in sorted({**errors, **needs_key}.items()):
            found[str(status)] = {"description": text, "content": {JSON: {"schema": error}}}
            if status in (429, 503):
                found[str(status)]["headers"] = {"retry-after": {"schema": {"type": "integer"}, "required": True}}
        return found

    def _content(self, path: str, known: Mapping[Any, Json]) -> Json:
        if path == "/metrics":
            return {"content": {each: {"schema": {"type": "string"}} for each in (TEXT, OPENMETRICS)}}
        if path in ADMIN_PATHS:
            return {"content": {TEXT: {"schema": {"type": "string"}}}}
        if path == FILE_CONTENT:
            return {"content": {BYTES: {"schema": {"type": "string", "format": "binary"}}}}
        content: Json = {JSON: {"schema": known[BODIES[path]]}} if path in BODIES else {}
        if path in CHUNKS:
            content[EVENTS] = {
                "itemSchema": _event(known[CHUNKS[path]], known[_error_body(path)], is_named=path in MESSAGE_PATHS)
            }
        return {"content": content} if content else {}

    def _security(self, path: str) -> list[Mapping[str, Collection[str]]]:
        keys: list[Mapping[str, Collection[str]]] = [{"bearer": []}, {"x-api-key": []}]
        return [{}, *keys] if self._gate.is_open(path) else keys

    def _add_bounds(self, schema: object) -> None:
        """Add the bounds of this router's model and config to the types that have them."""
        if isinstance(schema, list):
            for each in schema:
                self._add_bounds(each)
        elif isinstance(schema, dict):
            if isinstance(title := schema.get("title"), str) and title in self._bounds:
                name, bound = self._bounds[title]
                schema[name] = bound
            for each in schema.values():
                self._add_bounds(each)


def _error_body(path: str) -> Any:
    """Return the type of the errors of a path."""
    if path.startswith("/v2"):
        return kserve.KServeError
    return anthropic.MessageError if path in MESSAGE_PATHS else bodies.ErrorBody


def _event(chunk: Json, error: Json, is_named: bool) -> Json:
    """Return the schema of a server-sent event: a chunk, an error in mid-stream, or the end.

    `is_named`: events have names, those of their types, and the last chunk is the end.
    """
    payload = {"type": "string", "contentMediaType": JSON, "contentSchema": {"anyOf": [chunk, error]}}
    if is_named:
        properties = {"event": {"type": "string"}, "data": payload}
        return {"type": "object", "properties": properties, "required": ["event", "data"]}
    return {
        "type": "object",
        "properties": {"data": {"anyOf": [payload, {"const": "[DONE]"}]}},
        "required": ["data"],
    }
