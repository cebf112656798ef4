"""The API over HTTP."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.helm.api_server.api import APPLY, Api, Writing
from tests.helm.api_server.authorization import Access, Authorization, User
from tests.helm.api_server.discovery import discovered
from tests.helm.api_server.errors import ApiError, Json, bad_request, no_such_path
from tests.helm.api_server.listing import listed
from tests.helm.api_server.protobuf_bodies import CONTENT_TYPE as PROTOBUF
from tests.helm.api_server.protobuf_bodies import read_protobuf
from tests.helm.api_server.request_path import ResourcePath
from tests.helm.api_server.scale import rescaled, scale_of
from tests.helm.api_server.store import ObjectKey
from tests.helm.api_server.watching import watched

METHODS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete", "GET": "get"}


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, for whoever wants to know what a client does."""

    user: str
    method: str
    path: str
    query: Mapping[str, str]
    code: int


@dataclass
class HttpApi:
    """Owns who may come in, and the way from a request to a verb."""

    api: Api
    minor: int  # of Kubernetes' version
    users: dict[str, User]  # by token
    asked: list[Asked] = field(default_factory=list)

    def app(self) -> Starlette:
        """For a server."""
        return Starlette(routes=[Route("/{path:path}", self._handle, methods=list(METHODS))])

    async def _handle(self, request: Request) -> Response:
        user = self.users.get(request.headers.get("Authorization", "").partition(" ")[2])
        try:
            if user is None:
                raise ApiError(401, "Unauthorized", "Unauthorized")
            response = await self._answer(request, user)
        except ApiError as error:
            response = JSONResponse(error.status(), error.code)
        name, query = user.name if user else "", dict(request.query_params)
        self.asked.append(Asked(name, request.method, request.url.path, query, response.status_code))
        return response

    async def _answer(self, request: Request, user: User) -> Response:
        path = request.url.path
        parts = path.strip("/").split("/")
        if parts[0] in ("healthz", "livez", "readyz"):
            return PlainTextResponse("ok")
        if parts[0] not in ("api", "apis") or len(parts) <= (2 if parts[0] == "api" else 3):
            return JSONResponse(discovered(path, self.api.types, self.minor))
        named = ResourcePath.of(path)
        of = self.api.types.at(named.group, named.version, named.plural)
        key = ObjectKey(of, named.namespace if of.namespaced else "", named.name)
        verb = _verb(request, named)
        access = Access(verb, of, key.namespace, named.name, named.subresource)
        Authorization(self.api.store, self.api.types).check(user, access)
        if verb == "watch":
            events = watched(self.api.store, of, key.namespace, request.query_params)
            return StreamingResponse(events, media_type="application/json")
        if verb in ("get", "list"):
            return self._read(key, named, request)
        return self._write(verb, key, request, named, await _body(request))

    def _read(self, key: ObjectKey, named: ResourcePath, request: Request) -> Response:
        if not named.name:
            return JSONResponse(listed(self.api.store, key.type, key.namespace, request.query_params))
        found = self.api.get(key)
        match named.subresource:
            case "" | "status":
                return JSONResponse(found)
            case "scale" if key.type.has_scale:
                return JSONResponse(scale_of(found))
            case "log" if key.type.kind == "Pod":
                return PlainTextResponse("")
        raise no_such_path()

    def _write(self, verb: str, key: ObjectKey, request: Request, named: ResourcePath, body: Any) -> Response:
        how = _writing(request, named)
        if named.subresource not in ("", *key.type.subresources):
            raise no_such_path()
        content_type = request.headers.get("Content-Type", "").partition(";")[0]
        if named.subresource == "scale":
            return JSONResponse(rescaled(self.api, key, body, content_type if verb == "patch" else None, how))
        match verb:
            case "create":
                if not key.name:
                    return JSONResponse(self.api.create(key.type, key.namespace, body, how), 201)
            case "update":
                return JSONResponse(self.api.update(key, body, how))
            case "patch":
                code = 201 if self.api.store.get(key) is None else 200
                return JSONResponse(self.api.patch(key, body, content_type, how), code)
            case "delete" | "deletecollection":
                return self._delete(key, request, body or {}, how)
        raise ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")

    def _delete(self, key: ObjectKey, request: Request, options: Json, how: Writing) -> Response:
        if policy := request.query_params.get("propagationPolicy"):
            options = {**options, "propagationPolicy": policy}
        if key.name:
            return JSONResponse(self.api.delete(key, options, how.dry_run))
        chosen = listed(self.api.store, key.type, key.namespace, request.query_params)
        for each in chosen["items"]:
            metadata = each["metadata"]
            self.api.delete(ObjectKey(key.type, metadata.get("namespace", ""), metadata["name"]), options, how.dry_run)
        return JSONResponse(chosen)


def _verb(request: Request, named: ResourcePath) -> str:
    verb = METHODS[request.method]
    if named.name or verb not in ("get", "delete"):
        return verb
    if verb == "delete":
        return "deletecollection"
    return "watch" if request.query_params.get("watch") in ("true", "1") else "list"


def _writing(request: Request, named: ResourcePath) -> Writing:
    query = request.query_params
    agent = request.headers.get("User-Agent", "unknown").partition("/")[0]
    if not query.get("fieldManager") and request.headers.get("Content-Type", "").startswith(APPLY):
        raise bad_request("fieldManager is required for apply patch")
    dry_run, force = query.get("dryRun") == "All", query.get("force") == "true"
    return Writing(query.get("fieldManager") or agent, dry_run, force, named.subresource)


async def _body(request: Request) -> Any:
    """What was sent. Raises ApiError if that is neither JSON nor YAML."""
    sent = await request.body()
    if not sent:
        return {}
    if request.headers.get("Content-Type", "").startswith(PROTOBUF):
        return read_protobuf(sent)
    try:
        return json.loads(sent)
    except ValueError:
        pass
    try:
        return yaml.safe_load(sent)
    except (yaml.YAMLError, ValueError) as error:
        raise ApiError(415, "UnsupportedMediaType", "the body is neither JSON nor YAML") from error
