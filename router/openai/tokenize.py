"""The `/tokenize` and `/detokenize` routes, compatible with vLLM."""

import asyncio
from typing import Annotated

import orjson
from pydantic import ConfigDict, Field, WithJsonSchema

from baton.engine.errors import InvalidRequest
from baton.router.errors import FieldError
from baton.router.generation import ChatPrompt
from baton.router.http.exchange import Exchange
from baton.router.http.headers import read_context
from baton.router.inline_work import InlineWork
from baton.router.openai.messages import Messages, TemplateOptions, image_sources, template_messages
from baton.router.openai.prompts import TOKEN_IDS_SCHEMA, read_token_ids
from baton.router.openai.request_body import RequestBody
from baton.router.openai.tools import Tools, tool_use
from baton.router.service import RouterService


class TokenizeRequest(RequestBody):
    """A text, or messages for the chat template."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["prompt"], "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}}},
                {"required": ["messages"], "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}}},
            ]
        }
    )

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None  # None: true for a text, false for messages
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool = False
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict)
    tools: Tools = Field(default_factory=list)  # in the prompt of messages

    def source(self) -> str | ChatPrompt:
        """Return the prompt to tokenise. Raises InvalidRequest unless exactly one of the two fields is given."""
        if self.messages is not None:
            if self.prompt is not None:
                raise FieldError("prompt", "prompt and messages must not both be given")
            return ChatPrompt(
                messages=template_messages(self.messages),
                add_generation_prompt=self.add_generation_prompt and not self.continue_final_message,
                continue_final_message=self.continue_final_message,
                template_options=self.chat_template_kwargs,
                tools=tool_use(self.tools, None, is_parallel=True).shown,
                images=image_sources(self.messages),
            )
        if self.prompt is None:
            raise InvalidRequest("prompt or messages is required")
        return self.prompt


class DetokenizeRequest(RequestBody):
    """Token ids to convert to text."""

    model: str | None = None
    tokens: Annotated[object, WithJsonSchema(TOKEN_IDS_SCHEMA)]


class TokenizeApi:
    """Handler of tokenizer requests. Each counts as one completion for admission: it costs as much as a prompt."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._inline = InlineWork()

    async def tokenize(self, body: TokenizeRequest, exchange: Exchange) -> None:
        """Send the tokens of a text or of messages, the same as in a generation request."""
        model = await self._service.models.find(body.model)
        client = exchange.client
        context = read_context(exchange.headers, None, 0, client, self._service.config.default_timeout_s)
        special = body.messages is None if body.add_special_tokens is None else body.add_special_tokens
        async with exchange.watch(), client.hold(1), model.admission.admit(1, context, generates=False):
            cache_salt, key = client.cache_salt(""), context.fairness_key
            tokens = await model.pipeline.tokenize(body.source(), special, cache_salt, key)
            names = await model.tokenizer.token_names(tokens, key) if body.return_token_strs else None
            content: dict[str, object] = {
                "count": len(tokens),
                "max_model_len": model.pool.max_model_len(),  # None without a worker
                "tokens": tokens,
                "token_strs": names,
            }
            await exchange.respond(200, await asyncio.to_thread(orjson.dumps, content))

    async def detokenize(self, body: DetokenizeRequest, exchange: Exchange) -> None:
        """Send the text of tokens, including special ones."""
        model = await self._service.models.find(body.model)
        limit = model.pipeline.context_len()
        if isinstance(body.tokens, list) and len(body.tokens) > limit:
            raise FieldError("tokens", f"tokens has {len(body.tokens)} ids, but a context has at most {limit}")
        client = exchange.client
        context = read_context(exchange.headers, None, 0, client, self._service.config.default_timeout_s)
        tokens = await self._inline.run_paced(lambda: read_token_ids(body.tokens, "tokens"))
        if tokens and (min(tokens) < 0 or max(tokens) >= model.info.vocab_size):
            raise FieldError("tokens", f"tokens has an id outside 0 to {model.info.vocab_size - 1}")
        async with exchange.watch(), client.hold(1), model.admission.admit(1, context, generates=False):
            text = await model.tokenizer.decode(tokens, False, context.fairness_key)
            await exchange.respond(200, await asyncio.to_thread(orjson.dumps, {"prompt": text}))
