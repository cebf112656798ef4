"""The HTTP application: the handler of each path."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from baton.router.adapters.api import AdaptersApi, LoadAdapterBody, UnloadAdapterBody
from baton.router.admission.unread_output import UnreadOutput
from baton.router.anthropic import errors as anthropic
from baton.router.anthropic.messages import MessagesApi
from baton.router.anthropic.request import CountTokensRequest, MessagesRequest
from baton.router.api_docs.routes import docs_routes
from baton.router.auth.client import Gate
from baton.router.batches.api import BatchesApi, add_batch_routes
from baton.router.batches.request import BatchRequest
from baton.router.console.api import ConsoleApi, index_route
from baton.router.console.assets import BUILT
from baton.router.embeddings.api import EmbeddingsApi
from baton.router.embeddings.request import EmbeddingRequest
from baton.router.files.api import add_file_routes
from baton.router.files.errors import error_response as files_error
from baton.router.http.body_reader import BodyReader
from baton.router.http.body_route import Body, BodyIntake, BodyRoute
from baton.router.http.built_page import is_built
from baton.router.http.exchange import Exchange
from baton.router.http.headers import IS_HEAD
from baton.router.http.middleware import CrossOrigin, GateMiddleware, RequestIdMiddleware
from baton.router.kserve.errors import error_response as kserve_error
from baton.router.kserve.http import DESCRIBED, PREFIX, KServeHttp
from baton.router.openai.chat import ChatApi, ChatRequest
from baton.router.openai.completions import CompletionRequest, CompletionsApi
from baton.router.openai.description import Description
from baton.router.openai.errors import install_error_handlers
from baton.router.openai.operations import OperationsApi
from baton.router.openai.tokenize import DetokenizeRequest, TokenizeApi, TokenizeRequest
from baton.router.pins.api import PINS, PinsApi, add_pin_routes
from baton.router.pins.request import PinRequest
from baton.router.responses.api import ResponsesApi
from baton.router.responses.errors import error_response as responses_error
from baton.router.responses.request import ResponseRequest
from baton.router.responses.stored_api import add_routes
from baton.router.service import RouterService
from baton.router.tracing.request_trace import CHAT, EMBEDDINGS, TEXT_COMPLETION

logger = logging.getLogger(__name__)

Posts = Mapping[str, BodyRoute[Any]]  # by path; each with its own model


class HttpApp:
    """ASGI application for all requests except POSTs to the paths in `posts`, which the server handles itself."""

    def __init__(
        self,
        posts: Posts,
        others: FastAPI,
        unread: UnreadOutput,
        cors_origins: Sequence[str] = (),
        close: Callable[[], None] = lambda: None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        """`cors_origins`: origins whose pages may read responses in a browser. `close`: ends the routes' threads.

        `leave`: ends the streams that would never end, before the server waits for its responses.
        """
        self.posts = posts
        self.unread = unread
        self.close = close
        self.leave = leave
        self.cross_origin = CrossOrigin(self._route, cors_origins) if cors_origins else None
        self._others = others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await (self.cross_origin or self._route)(scope, receive, send)

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET", IS_HEAD: True}  # the server omits the body of the response
        await self._others(scope, receive, send)


def make_http_app(service: RouterService) -> HttpApp:
    """Return the application that serves OpenAI's and Anthropic's APIs."""
    tokenizer, chat, config = TokenizeApi(service), ChatApi(service), service.config
    reader = BodyReader(service.models.context_len)
    intake = BodyIntake(service.gate, service.body_budget, reader, config.max_body_bytes, service.recording)
    messages, adapters = MessagesApi(service, chat), AdaptersApi(service)
    posts: Posts = {
        "/v1/chat/completions": BodyRoute(ChatRequest, chat.complete, intake, operation=CHAT),
        "/v1/completions": BodyRoute(
            CompletionRequest, CompletionsApi(service).complete, intake, operation=TEXT_COMPLETION
        ),
        "/v1/messages": _anthropic(MessagesRequest, messages.create, intake, operation=CHAT),
        "/v1/messages/count_tokens": _anthropic(CountTokensRequest, messages.count_tokens, intake),
        "/v1/embeddings": BodyRoute(
            EmbeddingRequest, EmbeddingsApi(service).create, intake, can_resume=False, operation=EMBEDDINGS
        ),
        "/v1/responses": BodyRoute(
            ResponseRequest,
            ResponsesApi(service, chat, reader).create,
            intake,
            error_response=responses_error,
            can_resume=False,
            operation=CHAT,
        ),
        "/v1/batches": BodyRoute(
            BatchRequest, BatchesApi(service).create, intake, error_response=files_error, can_resume=False
        ),
        PINS: BodyRoute(PinRequest, PinsApi(service).create, intake, can_resume=False),
        "/v1/load_lora_adapter": BodyRoute(LoadAdapterBody, adapters.load, intake, can_resume=False),
        "/v1/unload_lora_adapter": BodyRoute(UnloadAdapterBody, adapters.unload, intake, can_resume=False),
        "/tokenize": BodyRoute(TokenizeRequest, tokenizer.tokenize, intake),
        "/detokenize": BodyRoute(DetokenizeRequest, tokenizer.detokenize, intake),
    }
    tensors = KServeHttp(service)
    models = {path: route.model for path, route in posts.items()}
    description = Description(service, {**models, **DESCRIBED})
    others = _make_others(OperationsApi(service), posts, service.gate, description)
    add_routes(others, service)
    add_file_routes(others, service)
    add_batch_routes(others, service)
    add_pin_routes(others, service)
    has_console = config.console and is_built(BUILT)
    if has_console is not config.console:
        logger.warning("there is no console: its page is missing in this installation")
    others.router.routes += [*tensors.routes(), index_route(has_console), *docs_routes()]
    closing, leaving = ExitStack(), ExitStack()
    closing.callback(intake.reader.close)
    if has_console:
        console = ConsoleApi(service)
        others.router.routes += console.routes()
        closing.callback(console.close)
        leaving.callback(console.leave)
    all_posts = {**posts, **tensors.posts(intake)}
    return HttpApp(all_posts, others, service.unread, config.cors_origins, closing.close, leaving.close)


def _anthropic(
    model: type[Body],
    serve: Callable[[Body, Exchange], Awaitable[None]],
    intake: BodyIntake,
    operation: str | None = None,
) -> BodyRoute[Body]:
    return BodyRoute(
        model, serve, intake, error_response=anthropic.error_response, can_resume=False, operation=operation
    )


def _make_others(operations: OperationsApi, posts: Posts, gate: Gate, description: Description) -> FastAPI:
    """Return the application for all other requests. It has the paths of `posts` for 405 and for the description."""
    app = _DescribedApp(description)
    install_error_handlers(app)
    app.add_middleware(GateMiddleware, gate=gate, shapes={PREFIX: kserve_error})
    app.add_middleware(RequestIdMiddleware)  # outermost: rejected requests get an id, too
    for path in posts:
        app.router.routes.append(Route(path, _not_found, methods=["POST"]))
    for path, serve in (
        ("/v1/models", operations.models),
        ("/v1/models/{name:path}", operations.model),
        ("/health", operations.health),
        ("/ping", operations.health),
        ("/ready", operations.ready),
        ("/version", operations.version),
        ("/metrics", operations.metrics),
        ("/workers", operations.workers),
        ("/pools", operations.pools),
        ("/timelines/{request_id:path}", operations.timeline),
    ):
        app.get(path, response_class=Response, response_model=None)(serve)
    app.post("/reset_prefix_cache", response_class=Response, response_model=None)(operations.reset_prefix_cache)
    app.post("/ping", response_class=Response, response_model=None)(operations.health)
    return app


async def _not_found(_request: Request) -> Response:
    """Respond 404: a POST to exactly this path is not served by the application."""
    raise HTTPException(404)


class _DescribedApp(FastAPI):
    """FastAPI with a complete /openapi.json, encoded once."""

    def __init__(self, description: Description) -> None:
        # Redirects of slashes would repeat the Host header of a proxy; FastAPI's pages load scripts of another host.
        super().__init__(title="Baton", redirect_slashes=False, docs_url=None, redoc_url=None)
        self._description = description
        self._encoded = b""

    def setup(self) -> None:
        """Add the route of the description in front of FastAPI's: the first route of a path counts."""
        assert self.openapi_url is not None
        self.add_route(self.openapi_url, self._describe, include_in_schema=False)
        super().setup()

    def openapi(self) -> dict[str, Any]:
        """Return the description, computed once."""
        if self.openapi_schema is None:
            self.openapi_schema = self._description.complete(super().openapi())
        return self.openapi_schema

    async def _describe(self, _request: Request) -> Response:
        # orjson cannot encode the bounds of 64-bit integers.
        self._encoded = self._encoded or json.dumps(self.openapi(), ensure_ascii=False).encode()
        return Response(self._encoded, media_type="application/json")
