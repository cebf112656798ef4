"""The `/v1/messages` and `/v1/messages/count_tokens` routes."""

from functools import partial

import orjson

from baton.router.anthropic.chat_request import chat_request, prompt_request
from baton.router.anthropic.errors import REQUEST_ID
from baton.router.anthropic.message_shape import MessageShape
from baton.router.anthropic.request import CountTokensRequest, MessagesRequest, ThinkingDisplay
from baton.router.generation import Generation
from baton.router.http.exchange import Exchange
from baton.router.http.headers import read_context
from baton.router.openai.chat import ChatApi
from baton.router.service import RouterService


class MessagesApi:
    """Handler of requests for messages, which are served as chat requests."""

    def __init__(self, service: RouterService, chat: ChatApi) -> None:
        self._service = service
        self._chat = chat

    async def create(self, body: MessagesRequest, exchange: Exchange) -> None:
        """Generate a message and send it."""
        exchange.response_headers[REQUEST_ID] = exchange.request_id
        model = self._service.models.named(body.model)
        request, marked = chat_request(body, model.tokenizer.chat_template, model.output_format)
        body.messages, body.system, body.tools = [], [], []  # they may be megabytes
        await self._chat.respond(
            model, request, exchange, partial(_shape, model.name, exchange.request_id, body.display()), marked
        )

    async def count_tokens(self, body: CountTokensRequest, exchange: Exchange) -> None:
        """Send the number of tokens of a prompt, the same as in the usage of a message."""
        exchange.response_headers[REQUEST_ID] = exchange.request_id
        model, client = self._service.models.named(body.model), exchange.client
        context = read_context(exchange.headers, None, 0, client, self._service.config.default_timeout_s)
        template = model.tokenizer.chat_template
        request = prompt_request(body, template, model.output_format)
        prompt = request.prompt(request.tool_use(), template)
        async with exchange.watch(), client.hold(1), model.admission.admit(1, context, generates=False):
            tokens = await model.pipeline.tokenize(prompt, False, client.cache_salt(""), context.fairness_key)
            await exchange.respond(200, orjson.dumps({"input_tokens": len(tokens)}))


def _shape(model_name: str, request_id: str, display: ThinkingDisplay, generation: Generation) -> MessageShape:
    return MessageShape(request_id, generation, display, model_name)
