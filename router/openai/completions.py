"""The `/v1/completions` route."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated

from pydantic import ConfigDict, Field, WithJsonSchema

from baton.engine.sampling.params import MAX_LOGPROBS
from baton.router.config import RouterConfig
from baton.router.errors import FieldError
from baton.router.generation import Generation, GenerationRequest
from baton.router.http.event_stream import kept_alive
from baton.router.http.exchange import Exchange
from baton.router.http.headers import read_context, resumable
from baton.router.inline_work import InlineWork, Pace
from baton.router.limits import check_echo
from baton.router.openai.completion_shape import CompletionShape, PromptEcho
from baton.router.openai.fields import STREAM_RULE, TRUE, GenerationFields
from baton.router.openai.prompts import PROMPT_SCHEMA, Prompt, read_prompts
from baton.router.openai.request_body import WHOLE, unless
from baton.router.openai.response import ResponseShape, command_id, send_completions
from baton.router.request_context import INT32_MAX, RequestContext
from baton.router.served_model import ServedModel
from baton.router.service import RouterService
from baton.router.text.tokenizer import Tokenizer

DEFAULT_MAX_TOKENS = 16
EMPTY_OUTPUT_RULE = unless("max_tokens", {"anyOf": [{"type": "null"}, {"minimum": 1}]}, "echo", TRUE)


class CompletionRequest(GenerationFields):
    """Body of a completion request."""

    model_config = ConfigDict(json_schema_extra={"allOf": [STREAM_RULE, EMPTY_OUTPUT_RULE]})

    prompt: Annotated[object, WithJsonSchema(PROMPT_SCHEMA)]  # validated by `read_prompts`
    max_tokens: Annotated[int, Field(ge=0, le=INT32_MAX), WHOLE] | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS), WHOLE] | None = None
    echo: bool = False
    add_special_tokens: bool = True

    def check(self, config: RouterConfig, num_prompts: int) -> None:
        """Raise FieldError for the first field that cannot be served."""
        super().check(config, num_prompts)
        if self.max_tokens == 0 and not self.echo:
            raise FieldError("max_tokens", "max_tokens is 0, but must be 1 or more unless echo is true")


MakeShape = Callable[[Sequence[Generation], Sequence[PromptEcho]], ResponseShape]


class CompletionsApi:
    """Handler of completion requests."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._inline = InlineWork()

    async def complete(self, body: CompletionRequest, exchange: Exchange) -> None:
        """Generate the completions of each prompt and send the response."""
        model = await self._service.models.find(body.model)
        await self.respond(model, body, exchange, partial(_shape, model, body, exchange))

    async def respond(
        self,
        model: ServedModel,
        body: CompletionRequest,
        exchange: Exchange,
        make_shape: MakeShape,
        timeout_s: float | None = None,
    ) -> None:
        """Generate the completions of each prompt and send the response in the shape of the client's API.

        `timeout_s`: time limit of a request whose headers have none. None: the router's default.
        """
        config = self._service.config
        prompts: list[Prompt] = []
        reading = read_prompts(body.prompt, config.max_choices, model.pipeline.context_len())
        while (prompt := await self._inline.run_paced(lambda: next(reading, None))) is not None:
            prompts.append(prompt)
        body.check(config, len(prompts))
        client = exchange.client
        default_timeout_s = config.default_timeout_s if timeout_s is None else timeout_s
        trace = exchange.trace
        context = read_context(exchange.headers, body.user, body.priority, client, default_timeout_s, trace)
        if trace is not None:
            trace.wait(model.name)
        num_completions = len(prompts) * body.n
        async with (
            exchange.watch(),
            kept_alive(exchange, body.stream) as exchange,
            client.hold(num_completions),
            model.admission.admit(num_completions, context),
        ):
            await _answer(model, body, prompts, context, exchange, make_shape)


async def _answer(
    model: ServedModel,
    body: CompletionRequest,
    prompts: list[Prompt],
    context: RequestContext,
    exchange: Exchange,
    make_shape: MakeShape,
) -> None:
    request_id, cache_salt = command_id(exchange.request_id), exchange.client.cache_salt(body.cache_salt or "")
    generations, pace = [], Pace()
    common = completion_generation(model, body, context, cache_salt)
    for place, prompt in enumerate(prompts):
        request = replace(common, request_id=f"{request_id}-{place}", prompt=prompt)
        generations.append(await model.pipeline.prepare(resumable(request, exchange.resumption, place)))
        await pace.give_turn()
    echoes: list[PromptEcho] = []
    if body.echo:
        echoes = [await _echo(model.tokenizer, body, *each) for each in zip(prompts, generations, strict=True)]
    check_echo((echo.text for echo in echoes), body.n)
    body.prompt = None
    prompts.clear()
    exchange.forget_body()
    shape = make_shape(generations, echoes)
    await send_completions(exchange, model.pipeline, generations, body, shape)


def _shape(
    model: ServedModel,
    body: CompletionRequest,
    exchange: Exchange,
    generations: Sequence[Generation],
    echoes: Sequence[PromptEcho],
) -> CompletionShape:
    return CompletionShape(
        response_id=f"cmpl-{exchange.request_id}",
        model=model.name,
        generations=generations,
        echoes=echoes,
        num_completions=body.n,
        num_top=body.logprobs,
        with_prompt_logprobs=body.prompt_logprobs is not None,
        with_token_ids=body.return_token_ids,
        tokenizer=model.tokenizer,
        names_ids=body.return_tokens_as_token_ids,
    )


async def _echo(tokenizer: Tokenizer, body: CompletionRequest, prompt: Prompt, generation: Generation) -> PromptEcho:
    client = generation.request.context.fairness_key
    text = prompt
    if not isinstance(text, str):
        text = await tokenizer.decode(generation.token_ids, body.skip_special_tokens, client)
    offsets: Sequence[int] = ()
    if body.logprobs is not None:
        offsets = await tokenizer.text_offsets(generation.token_ids, body.skip_special_tokens, client)
    return PromptEcho(text, generation.token_ids, offsets)


def completion_generation(
    model: ServedModel, body: CompletionRequest, context: RequestContext, cache_salt: str
) -> GenerationRequest:
    """Return what the requests of all prompts share, without id and prompt. Raises InvalidRequest."""
    sampling = body.sampling(model.info.sampling_defaults, model.info.vocab_size, body.logprobs)
    if body.echo and body.logprobs is not None:
        sampling = replace(sampling, prompt_logprobs=max(body.logprobs, body.prompt_logprobs or 0))
    return GenerationRequest(
        request_id="",
        prompt=(),
        sampling=sampling,
        seed=body.seed,
        max_tokens=body.max_tokens,
        default_max_tokens=DEFAULT_MAX_TOKENS,
        add_special_tokens=body.add_special_tokens,
        stop=tuple(body.stop),
        include_stop=body.include_stop_str_in_output,
        skip_special_tokens=body.skip_special_tokens,
        n=body.n,
        cache_salt=cache_salt,
        adapter=model.adapter,
        whole=not body.stream,
        context=context,
    )
