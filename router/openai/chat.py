"""The `/v1/chat/completions` route."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import orjson
from pydantic import ConfigDict, Field

from baton.engine.sampling.params import MAX_LOGPROBS
from baton.protos.common_pb2 import PositionLogprobs
from baton.router.config import RouterConfig
from baton.router.errors import FieldError
from baton.router.generation import ChatPrompt, CompletionDelta, Generation, GenerationRequest
from baton.router.http.event_stream import kept_alive
from baton.router.http.exchange import Exchange
from baton.router.http.headers import read_context, resumable
from baton.router.limits import MAX_ENTRIES, check_model
from baton.router.openai.fields import STREAM_RULE, TRUE, Count, GenerationFields
from baton.router.openai.logprobs import chat_content, prompt_positions
from baton.router.openai.messages import Messages, TemplateOptions, template_messages
from baton.router.openai.request_body import BOOLEAN, WHOLE, AtMost, unless
from baton.router.openai.response import WholeCompletion, command_id, json_fragment, send_completions
from baton.router.request_context import RequestContext
from baton.router.service import RouterService
from baton.router.text.tokenizer import Tokenizer


class ChatRequest(GenerationFields):
    """Body of a chat completion request."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                STREAM_RULE,
                unless("continue_final_message", {"enum": [False, None]}, "add_generation_prompt", {"const": False}),
                unless("top_logprobs", {"enum": [0, None]}, "logprobs", TRUE),
                unless("tools", {"enum": [[], None]}, "tool_choice", {"const": "none"}),
            ]
        }
    )

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE] | None = None
    tools: Annotated[list[dict[str, object]], Field(fail_fast=True), AtMost(MAX_ENTRIES)] = Field(default_factory=list)
    tool_choice: Literal["none", "auto"] | None = None
    echo: Annotated[Literal[False], BOOLEAN] = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False  # the template has them already
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict)

    def check(self, config: RouterConfig, num_prompts: int) -> None:
        """Raise FieldError for the first field that cannot be served."""
        if self.tools and self.tool_choice != "none":  # "none": the model must not call tools, so it gets none
            text = 'tools is not supported by this server; leave it out, or set tool_choice to "none"'
            raise FieldError("tools", text)
        super().check(config, num_prompts)

    def prompt(self) -> ChatPrompt:
        """Return the template's input. Raises FieldError if the fields contradict each other."""
        if self.add_generation_prompt and self.continue_final_message:
            message = "continue_final_message and add_generation_prompt must not both be true"
            raise FieldError("continue_final_message", message)
        return ChatPrompt(
            messages=template_messages(self.messages),
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            template_options=self.chat_template_kwargs,
        )

    def num_logprobs(self) -> int | None:
        """Return the number of best candidates to report for each token; None: no logprobs. Raises FieldError."""
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs can only be set when logprobs is true")
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatShape:
    """Encoder of the responses to one chat request; the constant part of its chunks is encoded once."""

    def __init__(
        self, response_id: str, generation: Generation, fields: ChatRequest, model: str, tokenizer: Tokenizer
    ) -> None:
        self._fields = fields
        self._generation = generation
        self._tokenizer = tokenizer
        self._num_top = fields.num_logprobs()
        self._head: Mapping[str, object] = {"id": response_id, "created": int(time.time()), "model": model}
        constant = orjson.dumps({**self._head, "object": "chat.completion.chunk"})
        self._prefix = b"data: " + constant[:-1] + b',"choices":['
        self._opened: set[int] = set()

    def resume(self, index: int) -> None:
        """Omit the opening event of a completion: the client has it."""
        self._opened.add(index)

    def chunk(self, delta: CompletionDelta, usage: dict[str, object] | None) -> bytes:
        """Return the events: the role first, then new text; none while a character or stop string is incomplete."""
        opening = b"" if delta.index in self._opened else self._open(delta.index, usage)
        with_tokens = self._num_top is not None or self._fields.return_token_ids
        if not (delta.text or delta.finish_reason or (with_tokens and delta.token_ids)):
            return opening
        parts = [self._prefix, b'{"index":%d,"delta":{' % delta.index]
        if delta.text or delta.finish_reason is None:
            parts += [b'"content":', orjson.dumps(delta.text)]
        parts += [b'},"logprobs":', orjson.dumps(self._logprobs(delta.logprobs)) if delta.logprobs else b"null"]
        if delta.finish_reason is None:
            parts.append(b',"finish_reason":null')
        else:
            parts += [b',"finish_reason":"%b"' % delta.finish_reason.encode()]
            parts += [b',"stop_reason":', orjson.dumps(delta.stop_reason)]
        if self._fields.return_token_ids:
            parts += [b',"token_ids":', orjson.dumps(delta.token_ids)]
        parts += [b"}]", self._end(usage)]
        return opening + b"".join(parts)

    def usage_chunk(self, usage: dict[str, object]) -> bytes:
        """Return the event with the usage and no choices."""
        return self._prefix + b"]" + self._end(usage)

    def whole(self, completions: Sequence[WholeCompletion], usage: dict[str, object]) -> dict[str, object]:
        """Return the chat completion object."""
        body = {
            **self._head,
            "object": "chat.completion",
            "choices": [json_fragment(self._choice(each)) for each in completions],
        }
        body["usage"] = usage
        if self._generation.sampling.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_positions(completions[0].prompt_logprobs, self._tokenizer)
        if self._fields.return_token_ids:
            body["prompt_token_ids"] = self._generation.token_ids
        return body

    def _choice(self, completion: WholeCompletion) -> dict[str, object]:
        body: dict[str, object] = {
            "index": completion.index,
            "message": {"role": "assistant", "content": completion.text, "refusal": None},
            "logprobs": self._logprobs(completion.logprobs),
            "finish_reason": completion.finish_reason,
            "stop_reason": completion.stop_reason,
        }
        if self._fields.return_token_ids:
            body["token_ids"] = completion.token_ids
        return body

    def _open(self, index: int, usage: dict[str, object] | None) -> bytes:
        self._opened.add(index)
        delta = b'{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]' % index
        prompt = b""
        if self._fields.return_token_ids:
            prompt = b',"prompt_token_ids":' + orjson.dumps(self._generation.token_ids)
        return self._prefix + delta + prompt + self._end(usage)

    def _end(self, usage: dict[str, object] | None) -> bytes:
        return b"}\n\n" if usage is None else b',"usage":' + orjson.dumps(usage) + b"}\n\n"

    def _logprobs(self, positions: Sequence[PositionLogprobs]) -> dict[str, object] | None:
        if self._num_top is None:
            return None
        return {"content": chat_content(positions, self._num_top, self._tokenizer)}


class ChatApi:
    """Handler of chat completion requests."""

    def __init__(self, service: RouterService) -> None:
        self._service = service

    async def complete(self, body: ChatRequest, exchange: Exchange) -> None:
        """Generate the completions of a conversation and send the response."""
        service = self._service
        check_model(service.model.name, body.model)
        body.check(service.config, num_prompts=1)
        client = exchange.client
        context = read_context(exchange.headers, body.user, body.priority, client, service.config.default_timeout_s)
        num_completions = body.n
        async with (
            exchange.watch(),
            kept_alive(exchange, body.stream) as exchange,
            client.hold(num_completions),
            service.admission.admit(num_completions, context),
        ):
            request = resumable(self._request(body, context, exchange), exchange.resumption)
            generation = await service.pipeline.prepare(request)
            body.messages = ()
            exchange.forget_body()
            response_id = f"chatcmpl-{exchange.request_id}"
            shape = ChatShape(response_id, generation, body, service.model.name, service.tokenizer)
            await send_completions(exchange, service.pipeline, [generation], body, shape)

    def _request(self, body: ChatRequest, context: RequestContext, exchange: Exchange) -> GenerationRequest:
        model = self._service.model
        return GenerationRequest(
            request_id=command_id(exchange.request_id),
            prompt=body.prompt(),
            sampling=body.sampling(model.sampling_defaults, model.vocab_size, body.num_logprobs()),
            seed=body.seed,
            max_tokens=body.max_completion_tokens or body.max_tokens,
            add_special_tokens=body.add_special_tokens,
            stop=tuple(body.stop),
            include_stop=body.include_stop_str_in_output,
            skip_special_tokens=body.skip_special_tokens,
            n=body.n,
            cache_salt=exchange.client.cache_salt(body.cache_salt or ""),
            whole=not body.stream,
            context=context,
        )
