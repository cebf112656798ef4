"""The HTTP paths of the protocol. A router's models, and so the paths of its inferences, are known at start."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import orjson
from fastapi import Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from baton.router.errors import FieldError
from baton.router.generation import Generation
from baton.router.http.body_reader import BodyReader, Content
from baton.router.http.body_route import BodyIntake, BodyRoute, JsonFormat
from baton.router.http.exchange import Exchange
from baton.router.http.headers import is_json
from baton.router.kserve.bodies import GenerateBody, InferBody
from baton.router.kserve.errors import error_body, error_response
from baton.router.kserve.inference import VERSION, Inference, find_model
from baton.router.kserve.metadata import Metadata, as_json
from baton.router.kserve.outputs import Outputs
from baton.router.kserve.shapes import HEADER_LENGTH, GenerateShape, InferShape
from baton.router.openai.completion_shape import PromptEcho
from baton.router.openai.completions import CompletionsApi
from baton.router.openai.errors import RETRY_AFTER_S
from baton.router.openai.response import ResponseShape
from baton.router.served_model import ServedModel
from baton.router.service import RouterService
from baton.router.tracing.request_trace import TEXT_COMPLETION

PREFIX = "/v2"
MODEL, ANY_MODEL = f"{PREFIX}/models/{{name}}", f"{PREFIX}/models/{{name:path}}"
POSTS: Mapping[str, type[BaseModel]] = {"infer": InferBody, "generate": GenerateBody, "generate_stream": GenerateBody}
DESCRIBED: Mapping[str, type[BaseModel]] = {
    f"{MODEL}{version}/{name}": body for version in ("", "/versions/{version}") for name, body in POSTS.items()
}
Handler = Callable[[Request], Awaitable[Response]]


class TensorFormat:
    """Bodies of JSON, or of JSON and the binary contents of its tensors."""

    def __init__(self) -> None:
        self._json = JsonFormat(InferBody)

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise HTTPException (415) for a body that any web page may send to a server on the user's machine.

        Triton's client declares no content type. Browsers always send an `origin` with such a body.
        """
        content_type = headers.get("content-type", "")
        is_declared = is_json(content_type) or content_type == "application/octet-stream" or HEADER_LENGTH in headers
        if not is_declared and (content_type or "origin" in headers):
            raise HTTPException(415, "the content type must be application/json or application/octet-stream")

    async def read(self, reader: BodyReader, content: Content, exchange: Exchange) -> InferBody:
        """Parse a body. Raises HTTPException (400) for an invalid size of its JSON, and as `BodyReader.read`."""
        size = exchange.headers.get(HEADER_LENGTH)
        if size is None:
            return await self._json.read(reader, content, exchange)
        if not (size.isascii() and size.isdecimal() and len(size) < 20) or int(size) > len(content):
            raise HTTPException(400, f"{HEADER_LENGTH} is {size[:50]!r}, but the body has {len(content)} bytes")
        num_bytes = int(size)
        body = await self._json.read(reader, content[:num_bytes], exchange)
        body.attach(content[num_bytes:])
        return body


class KServeHttp:
    """Handler of the protocol's requests over HTTP."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._completions = CompletionsApi(service)
        self._metadata = Metadata(service)

    def posts(self, intake: BodyIntake) -> dict[str, BodyRoute[Any]]:
        """Return the routes of the served models' inferences, by path."""
        return {path: route for model in self._service.models for path, route in self._posts(model, intake).items()}

    def _posts(self, model: ServedModel, intake: BodyIntake) -> dict[str, BodyRoute[Any]]:
        infer = BodyRoute(
            InferBody,
            partial(self.infer, model),
            intake,
            error_response=error_response,
            can_resume=False,
            body_format=TensorFormat(),
            operation=TEXT_COMPLETION,
        )
        generate, stream = (
            BodyRoute(
                GenerateBody,
                partial(self.generate, model, is_stream=is_stream),
                intake,
                error_response=error_response,
                can_resume=False,
                operation=TEXT_COMPLETION,
            )
            for is_stream in (False, True)
        )
        path = MODEL.format(name=model.name)
        return {
            f"{path}{version}/{name}": route
            for version in ("", f"/versions/{VERSION}")
            for name, route in (("infer", infer), ("generate", generate), ("generate_stream", stream))
        }

    async def infer(self, model: ServedModel, body: InferBody, exchange: Exchange) -> None:
        """Generate from the input tensors and respond with tensors.

        `model`: of the path; the body may name an adapter of it.
        """
        await self._service.models.find(body.model_name or model.name)
        named = find_model(self._service.models, body.model_name or model.name, body.model_version or "")
        if named.info.name != model.name:
            raise FieldError("model_name", f"model_name is {named.name}, but the path has {model.name}")
        model = named
        inference, binary = await body.inference().read(), body.binary_outputs()
        await self._respond(
            model, inference, exchange, lambda outputs: InferShape(model.name, inference.request_id, outputs, binary)
        )

    async def generate(self, model: ServedModel, body: GenerateBody, exchange: Exchange, *, is_stream: bool) -> None:
        """Generate from the fields of a JSON object, and respond with one, or with events.

        `is_stream`: respond with events, of which a request that does not stream has one.
        """
        inference = await body.inference(may_stream=is_stream).read()
        wants_stream = inference.body.stream
        inference.body.stream = is_stream
        await self._respond(
            model,
            inference,
            exchange,
            lambda outputs: GenerateShape(model.name, inference.request_id, outputs, wants_stream),
        )

    async def _respond(
        self,
        model: ServedModel,
        inference: Inference,
        exchange: Exchange,
        make_shape: Callable[[Outputs], ResponseShape],
    ) -> None:
        def shape(generations: Sequence[Generation], echoes: Sequence[PromptEcho]) -> ResponseShape:
            prefix = echoes[0].text if echoes else ""
            return make_shape(Outputs(inference, len(generations[0].token_ids), prefix))

        await self._completions.respond(model, inference.body, exchange, shape, inference.timeout_s)

    def routes(self) -> list[Route]:
        """Return the routes of all other requests, the more specific ones first."""
        described: list[Route] = [
            _route(PREFIX, self._server),
            _route(f"{PREFIX}/health/live", self._live),
            _route(f"{PREFIX}/health/ready", self._ready),
            _route(f"{PREFIX}/repository/index", self._index, "POST"),
        ]
        for path in (f"{ANY_MODEL}/versions/{{version}}", ANY_MODEL):
            described += [_route(f"{path}/{name}", self._other_model, "POST") for name in POSTS]
            described += [
                _route(f"{path}/ready", self._model_ready),
                _route(f"{path}/config", self._config),
                _route(path, self._model),
            ]
        return described

    async def _live(self, _request: Request) -> Response:
        return _json({"live": True})

    async def _ready(self, _request: Request) -> Response:
        return _readiness({"ready": self._service.is_ready()})

    async def _server(self, _request: Request) -> Response:
        return _json(as_json(self._metadata.server()))

    async def _model(self, request: Request) -> Response:
        return _json(as_json(self._metadata.model(*_name(request))))

    async def _model_ready(self, request: Request) -> Response:
        name, version = _name(request)
        return _readiness({"name": name, "ready": self._metadata.is_model_ready(name, version)})

    async def _config(self, request: Request) -> Response:
        return _json(as_json(self._metadata.config(*_name(request))))

    async def _index(self, _request: Request) -> Response:
        return _json(as_json(self._metadata.index(only_ready=False))["models"])

    async def _other_model(self, request: Request) -> Response:
        """Respond 404: the server itself serves the paths of its models."""
        find_model(self._service.models, *_name(request))
        raise HTTPException(404)


def _route(path: str, serve: Handler, method: str = "GET") -> Route:
    """Return a route whose errors have the protocol's shape."""

    async def handle(request: Request) -> Response:
        try:
            return await serve(request)
        except Exception as error:
            return error_response(error)

    return Route(path, handle, methods=[method])


def _name(request: Request) -> tuple[str, str]:
    """Return the model and version of a path."""
    return request.path_params["name"], request.path_params.get("version", "")


def _readiness(body: dict[str, object]) -> Response:
    if body["ready"]:
        return _json(body)
    headers = {"retry-after": RETRY_AFTER_S}
    return Response(error_body("no decode worker is ready"), 503, headers, "application/json")


def _json(body: object) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")
