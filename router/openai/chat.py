"""The `/v1/chat/completions` route."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

from pydantic import ConfigDict, Field
from pydantic.config import JsonDict

from baton.engine.sampling.params import MAX_LOGPROBS
from baton.router.errors import FieldError
from baton.router.generation import ChatPrompt, Generation, GenerationRequest
from baton.router.http.event_stream import kept_alive
from baton.router.http.exchange import Exchange
from baton.router.http.headers import read_context, resumable
from baton.router.openai.chat_shape import ChatOptions, ChatShape
from baton.router.openai.fields import STREAM_RULE, TRUE, Count, GenerationFields
from baton.router.openai.messages import (
    ChatMessage,
    Messages,
    PlainMessage,
    TemplateOptions,
    image_sources,
    template_messages,
)
from baton.router.openai.request_body import BOOLEAN, WHOLE, unless
from baton.router.openai.response import ResponseShape, command_id, send_completions
from baton.router.openai.tools import ToolChoice, Tools, tool_use
from baton.router.output.rules import ToolUse, output_rules
from baton.router.request_context import RequestContext
from baton.router.served_model import ServedModel
from baton.router.service import RouterService
from baton.router.text.chat_template import ChatTemplate

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
THINKING_OPTIONS = ("enable_thinking", "thinking")  # of chat templates, true or false
TOOL_CHOICE_RULE: JsonDict = {  # a choice that requires a call needs tools
    "anyOf": [
        {"properties": {"tool_choice": {"enum": ["none", "auto", None]}}},
        {"required": ["tools"], "properties": {"tools": {"type": "array", "minItems": 1}}},
    ]
}


class ChatRequest(GenerationFields):
    """Body of a chat completion request."""

    model_config = ConfigDict(
        json_schema_extra={
            "allOf": [
                STREAM_RULE,
                unless("continue_final_message", {"enum": [False, None]}, "add_generation_prompt", {"const": False}),
                unless("top_logprobs", {"enum": [0, None]}, "logprobs", TRUE),
                TOOL_CHOICE_RULE,
            ]
        }
    )

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE] | None = None
    tools: Tools = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    reasoning_effort: ReasoningEffort | None = None
    include_reasoning: bool = True
    echo: Annotated[Literal[False], BOOLEAN] = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False  # the template has them already
    chat_template_kwargs: TemplateOptions = Field(default_factory=dict)

    def tool_use(self) -> ToolUse:
        """Return how the model may use the tools. Raises FieldError."""
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    def prompt(self, tools: ToolUse, template: ChatTemplate) -> ChatPrompt:
        """Return the template's input. Raises FieldError if the fields contradict each other."""
        if self.add_generation_prompt and self.continue_final_message:
            message = "continue_final_message and add_generation_prompt must not both be true"
            raise FieldError("continue_final_message", message)
        return ChatPrompt(
            messages=template_messages(self.messages),
            add_generation_prompt=self.add_generation_prompt,
            continue_final_message=self.continue_final_message,
            template_options={**self._effort(template), **self.chat_template_kwargs},
            tools=tools.shown,
            images=image_sources(self.messages),
        )

    def _effort(self, template: ChatTemplate) -> dict[str, object]:
        """Return the template's options for the reasoning effort. Raises FieldError if the template has none."""
        effort = self.reasoning_effort
        if effort is None:
            return {}
        options: dict[str, object] = {"reasoning_effort": effort} if template.has_variable("reasoning_effort") else {}
        options |= {name: effort != "none" for name in THINKING_OPTIONS if template.has_variable(name)}
        if not options:
            text = "reasoning_effort is not supported: the model's chat template has no such option; omit it"
            raise FieldError("reasoning_effort", text)
        return options

    def num_logprobs(self) -> int | None:
        """Return the number of best candidates to report for each token; None: no logprobs. Raises FieldError."""
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs", "top_logprobs can only be set when logprobs is true")
        return (self.top_logprobs or 0) if self.logprobs else None


class ChatApi:
    """Handler of chat completion requests."""

    def __init__(self, service: RouterService) -> None:
        self._service = service

    async def complete(self, body: ChatRequest, exchange: Exchange) -> None:
        """Generate the completions of a conversation and send the response."""
        model = await self._service.models.find(body.model)
        await self.respond(model, body, exchange, partial(_shape, model, body, exchange))

    async def respond(
        self,
        model: ServedModel,
        body: ChatRequest,
        exchange: Exchange,
        make_shape: Callable[[Generation], ResponseShape],
        marked: Sequence[ChatMessage | PlainMessage] = (),
    ) -> None:
        """Generate the completions of a conversation and send the response in the shape of the client's API.

        `marked`: its beginning that the client expects to send again; empty: unknown.
        """
        config = self._service.config
        body.check(config, num_prompts=1)
        client = exchange.client
        trace = exchange.trace
        context = read_context(exchange.headers, body.user, body.priority, client, config.default_timeout_s, trace)
        if trace is not None:
            trace.wait(model.name)
        num_completions = body.n
        async with (
            exchange.watch(),
            kept_alive(exchange, body.stream) as exchange,
            client.hold(num_completions),
            model.admission.admit(num_completions, context),
        ):
            # The request has no name here: its prompt, which may be megabytes, would live as long as the name.
            generation = await model.pipeline.prepare(
                resumable(_request(model, body, context, exchange, marked), exchange.resumption)
            )
            body.messages, body.tools, marked = (), (), ()
            exchange.forget_body(generation.num_pixel_bytes)
            await send_completions(exchange, model.pipeline, [generation], body, make_shape(generation))


def _shape(model: ServedModel, body: ChatRequest, exchange: Exchange, generation: Generation) -> ChatShape:
    options = ChatOptions(
        num_top=body.num_logprobs(),
        with_token_ids=body.return_token_ids,
        with_reasoning=body.include_reasoning,
        names_ids=body.return_tokens_as_token_ids,
    )
    response_id = f"chatcmpl-{exchange.request_id}"
    return ChatShape(response_id, generation, options, model.name, model.tokenizer)


def _request(
    model: ServedModel,
    body: ChatRequest,
    context: RequestContext,
    exchange: Exchange,
    marked: Sequence[ChatMessage | PlainMessage],
) -> GenerationRequest:
    info, tools = model.info, body.tool_use()
    prompt = body.prompt(tools, model.tokenizer.chat_template)
    if marked:
        prompt = replace(prompt, marked=template_messages(marked))
    return GenerationRequest(
        request_id=command_id(exchange.request_id),
        prompt=prompt,
        sampling=body.sampling(info.sampling_defaults, info.vocab_size, body.num_logprobs()),
        seed=body.seed,
        max_tokens=body.max_completion_tokens or body.max_tokens,
        add_special_tokens=body.add_special_tokens,
        stop=tuple(body.stop),
        include_stop=body.include_stop_str_in_output,
        skip_special_tokens=body.skip_special_tokens,
        n=body.n,
        cache_salt=exchange.client.cache_salt(body.cache_salt or ""),
        adapter=model.adapter,
        whole=not body.stream,
        output_rules=output_rules(model.output_format, tools),
        context=context,
    )
