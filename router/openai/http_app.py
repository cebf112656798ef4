"""The HTTP application: which path is served by whom."""

from fastapi import FastAPI
from starlette.responses import Response

from router.openai.chat import ChatApi
from router.openai.completions import CompletionsApi
from router.openai.errors import install_error_handlers
from router.openai.middleware import BodyLimitMiddleware, RequestIdMiddleware
from router.openai.operations import OperationsApi
from router.openai.strict_json import StrictJsonRoute
from router.openai.tokenize import TokenizeApi
from router.service import RouterService


def make_http_app(service: RouterService) -> FastAPI:
    """The application that serves the OpenAI API with the parts of `service`."""
    app = FastAPI(title="Baton")
    app.router.route_class = StrictJsonRoute
    install_error_handlers(app)
    app.add_middleware(BodyLimitMiddleware, max_bytes=service.config.max_body_bytes)
    app.add_middleware(RequestIdMiddleware)

    chat, completions = ChatApi(service), CompletionsApi(service)
    tokenizer, operations = TokenizeApi(service), OperationsApi(service)
    for path, answer in (
        ("/v1/chat/completions", chat.complete),
        ("/v1/completions", completions.complete),
        ("/tokenize", tokenizer.tokenize),
        ("/detokenize", tokenizer.detokenize),
    ):
        app.post(path, response_class=Response, response_model=None)(answer)
    for path, serve in (
        ("/v1/models", operations.models),
        ("/v1/models/{name:path}", operations.model),
        ("/health", operations.health),
        ("/ready", operations.ready),
        ("/metrics", operations.metrics),
        ("/workers", operations.workers),
    ):
        app.get(path, response_class=Response, response_model=None)(serve)
    return app
