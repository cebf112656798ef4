"""The life of a request in the router.

0. Admit it, possibly after a wait in the queue (`Admission`). The front end holds the admission until the last token
   is generated.
1. Render the chat template and tokenise the prompt, off the event loop.
2. Check that prompt and output fit the context, make and validate the grammar, read and resize the images, and draw a
   seed if the request has none.
3. Choose workers by their prefix caches and load, and send the first completion (`Dispatcher`).
4. Stream its output: detokenise it, cut it at stop strings and find its parts, such as tool calls (`CompletionOutput`).
5. Once the prompt is in the decode worker's cache, send the other completions there.

A request that exceeds its deadline fails at any step. Its completions are cancelled at the workers.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

from baton.engine.errors import InvalidRequest
from baton.engine.grammar.grammar import Grammar
from baton.engine.vision.image import Image
from baton.router.admission.deadline import items_within, result_within
from baton.router.admission.turns import Turns
from baton.router.dispatch.dispatcher import Dispatcher
from baton.router.dispatch.first_worker import FirstWorker
from baton.router.errors import FieldError, NoWorker
from baton.router.generation import ChatPrompt, CompletionDelta, Generation, GenerationRequest, cached_tokens
from baton.router.images.base import PromptImages
from baton.router.limits import CONTEXT_LENGTH_EXCEEDED, context_error, text_length_error
from baton.router.metrics.metrics import CompletionMeter, RouterMetrics
from baton.router.model_info import ModelInfo
from baton.router.output.completion import CompletionOutput
from baton.router.output.rules import OutputRules
from baton.router.resumption.recall import Recall
from baton.router.resumption.resumed_output import Output, ResumedOutput, recalled_first
from baton.router.stream_merge import StreamMerge
from baton.router.text.tokenizer import Tokenizer
from baton.router.workers.pool import WorkerPool

T = TypeVar("T")

INLINE_GRAMMAR_CHARS = 4096  # validating a longer one may delay the event loop by several milliseconds


class Pipeline:
    """Prepares requests and generates their completions."""

    def __init__(
        self,
        model: ModelInfo,
        tokenizer: Tokenizer,
        images: PromptImages,
        pool: WorkerPool,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        first_worker: FirstWorker,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._images = images
        self._pool = pool
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._first_worker = first_worker
        self._grammar_turns = Turns()
        self.recall = Recall(pool, metrics)

    async def prepare(self, request: GenerationRequest) -> Generation:
        """Tokenise the prompt and resolve the limits and the seed.

        Raises InvalidRequest, NoWorker if no decode worker is ready, or DeadlineExceeded.
        """
        trace = request.context.trace
        try:
            if trace is None:
                return await self._prepare_in_time(request)
            with trace.step("tokenize") as span:
                generation = await self._prepare_in_time(request)
                num_tokens = len(generation.token_ids)
                span.attributes["gen_ai.usage.input_tokens"] = num_tokens
        except Exception as error:
            self._metrics.recent.failed(request.client_id, error)
            raise
        trace.note_prompt(num_tokens, generation.sampling.max_tokens, request.n)
        return generation

    def generate(self, generation: Generation) -> AsyncGenerator[CompletionDelta, None]:
        """Yield the deltas of all completions until each has finished. Closing it cancels them at the workers.

        Raises DeadlineExceeded, and what `Dispatcher.run` raises.
        """
        deadline_s = generation.request.context.deadline_s
        deltas = self._completion(generation, 0) if generation.request.n == 1 else self._completions(generation)
        if deadline_s is None:
            return deltas
        return items_within(deadline_s, deltas, partial(self._metrics.recent.failed, generation.request.client_id))

    async def _prepare_in_time(self, request: GenerationRequest) -> Generation:
        deadline_s = request.context.deadline_s
        if deadline_s is None:
            return await self._prepare(request)
        return await result_within(deadline_s, self._prepare(request), "was tokenised")

    async def _prepare(self, request: GenerationRequest) -> Generation:
        field = prompt_field(request.prompt)
        if not await self._first_worker.wait():
            raise NoWorker("no decode worker is ready")
        client = request.context.fairness_key
        prompt = await self._rendered(request.prompt, client)
        token_ids = await self.tokenize(prompt, request.add_special_tokens, request.cache_salt, client, field)
        if not token_ids:
            raise FieldError(field, "the prompt is empty; at least one token is needed")
        await self._first_worker.wait()
        max_tokens = self._fit(len(token_ids), request)
        grammar = request.sampling.grammar
        is_open: bool | None = None
        if request.output_rules is not None and isinstance(prompt, str):
            is_open = request.output_rules.format.is_reasoning_open(prompt)
            grammar = await self._grammar(request.output_rules, grammar, is_open, client)
        elif grammar is not None:
            await self._in_turn(grammar.validate, len(grammar.source), client)
        token_ids, images = await self._placed(token_ids, request.prompt, client)
        num_marked = await self._num_marked(request.prompt, prompt, len(token_ids), client)
        if images:
            max_tokens = self._fit(len(token_ids), request)
        seed = secrets.randbits(63) if request.seed is None else request.seed % (1 << 64)
        sampling = replace(request.sampling, seed=seed, max_tokens=max_tokens, grammar=grammar)
        if sampling.min_tokens > max_tokens and request.max_tokens is None:
            text = f"min_tokens is {sampling.min_tokens}, but the context leaves {max_tokens} tokens"
            raise FieldError("min_tokens", text, CONTEXT_LENGTH_EXCEEDED)
        sampling.validate(self._model.vocab_size)
        self._metrics.request_started(max_tokens, request.n)
        request = replace(request, prompt=())  # frees the prompt: it may be megabytes
        return Generation(
            request, token_ids, sampling, images=images, num_marked_tokens=num_marked, is_reasoning_open=is_open
        )

    async def _num_marked(
        self, prompt: str | Sequence[int] | ChatPrompt, text: str | Sequence[int], num_tokens: int, client: str
    ) -> int:
        """Return about how many tokens the marked beginning of a prompt has, which is rendered as `text`."""
        if not isinstance(prompt, ChatPrompt) or not prompt.marked or not isinstance(text, str):
            return 0
        try:
            beginning = await self._tokenizer.render(
                prompt.marked, False, False, prompt.template_options, client, prompt.tools
            )
        except InvalidRequest:  # the template does not render it alone
            return 0
        return num_tokens * num_common_chars(beginning, text) // len(text)

    async def _grammar(
        self, rules: OutputRules, given: Grammar | None, is_open: bool | None, client: str
    ) -> Grammar | None:
        """Return the valid grammar of the whole output, given that of its content. Raises InvalidRequest."""
        if given is None and not rules.need_grammar:
            return None
        num_chars = rules.num_schema_chars + (0 if given is None else len(given.source))
        return await self._in_turn(partial(rules.grammar, given, is_open), num_chars, client)

    async def _in_turn(self, work: Callable[[], T], num_chars: int, client: str) -> T:
        """Return the result of work on a grammar, on a large one off the event loop; clients take turns at it."""
        if num_chars <= INLINE_GRAMMAR_CHARS:
            return work()
        async with self._grammar_turns.turn(client):
            return await asyncio.to_thread(work)

    async def _placed(
        self, token_ids: list[int], prompt: str | Sequence[int] | ChatPrompt, client: str
    ) -> tuple[list[int], tuple[Image, ...]]:
        """Return the tokens with the placeholders of all images of messages, and these images, resized.

        It is the last work on a request, as pixels count in no budget until it ends. Raises FieldError.
        """
        if not isinstance(prompt, ChatPrompt) or not prompt.images:
            return token_ids, ()
        return self._images.place(token_ids, await self._images.read(prompt.images, client))

    async def _rendered(self, prompt: str | Sequence[int] | ChatPrompt, client: str) -> str | Sequence[int]:
        """Return a prompt with the chat template applied to messages. Raises FieldError."""
        if not isinstance(prompt, ChatPrompt):
            return prompt
        self._images.check(prompt.images)
        return await self._tokenizer.render(
            prompt.messages,
            prompt.add_generation_prompt,
            prompt.continue_final_message,
            prompt.template_options,
            client,
            prompt.tools,
        )

    async def tokenize(
        self,
        prompt: str | Sequence[int] | ChatPrompt,
        add_special_tokens: bool,
        cache_salt: str = "",
        client: str = "",
        field: str | None = None,
    ) -> list[int]:
        """Return the token ids of a prompt; see `tokenize_with_images`."""
        return (await self.tokenize_with_images(prompt, add_special_tokens, cache_salt, client, field))[0]

    async def tokenize_with_images(
        self,
        prompt: str | Sequence[int] | ChatPrompt,
        add_special_tokens: bool,
        cache_salt: str = "",
        client: str = "",
        field: str | None = None,
    ) -> tuple[list[int], tuple[Image, ...]]:
        """Return the token ids of a prompt, and its images, resized. Clients take turns at the tokenizer.

        `field`: of the request, for errors. Raises FieldError if it cannot fit the context or has token ids outside of
        the vocabulary.
        """
        field = field or prompt_field(prompt)
        text = await self._rendered(prompt, client)
        if isinstance(text, str):
            max_chars = self.context_len() * self._tokenizer.max_token_chars
            if len(text) > max_chars:
                raise text_length_error(field, self.context_len(), len(text), max_chars)
            token_ids = await self._tokenizer.encode(text, add_special_tokens, cache_salt, client)
            return await self._placed(token_ids, prompt, client)
        token_ids = list(text)
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= self._model.vocab_size):
            raise FieldError(field, f"the prompt has a token id outside 0 to {self._model.vocab_size - 1}")
        return token_ids, ()

    def context_len(self) -> int:
        """Return the maximum tokens of prompt plus output: the workers', or the checkpoint's if there is no worker."""
        return self._pool.max_model_len() or self._model.max_model_len

    async def _completions(self, generation: Generation) -> AsyncGenerator[CompletionDelta, None]:
        """Yield the deltas of several completions until all have finished."""
        num_completions = generation.request.n
        async with StreamMerge[CompletionDelta]() as merged:
            await merged.add(self._completion(generation, 0))
            num_first_tokens, decode_worker = 0, ""
            async for delta in merged:
                if num_completions > 1 and delta.index == 0:
                    num_first_tokens += len(delta.token_ids)
                    decode_worker = delta.served_by.decode_worker if delta.served_by else decode_worker
                    # The second token proves that the decode worker has the KV of the whole prompt.
                    if num_first_tokens > 1 or delta.finish_reason is not None:
                        for index in range(1, num_completions):
                            await merged.add(self._completion(generation, index, decode_worker))
                        num_completions = 1
                yield delta

    async def _completion(
        self, generation: Generation, index: int, decode_worker: str | None = None
    ) -> AsyncGenerator[CompletionDelta, None]:
        """Yield the deltas of one completion until it has finished."""
        output: Output = CompletionOutput(index, generation, self._tokenizer)
        worker_deltas = self._dispatcher.run(generation, index, decode_worker)
        if (start := generation.start(index)) is not None:
            output = ResumedOutput(output, start, len(generation.token_ids))
            worker_deltas = recalled_first(start, worker_deltas)
        context = generation.request.context
        adapter = "" if generation.request.adapter is None else generation.request.adapter.name
        # As in vLLM, the wait for admission counts, but not that of a batch, which may take hours.
        trace = context.trace
        meter = CompletionMeter(self._metrics, None if context.is_deferred else context.arrived_s, adapter, trace)
        reason = "abort"
        is_prompt_counted = index > 0  # the first completion counts the prompt
        try:
            async with aclosing(worker_deltas):
                async for worker_delta in worker_deltas:
                    delta = output.push(worker_delta)
                    if delta.served_by is not None and not is_prompt_counted:
                        is_prompt_counted = True
                        self._metrics.prompt_done(len(generation.token_ids), cached_tokens(delta.served_by), adapter)
                        if trace is not None:
                            trace.note_cached(cached_tokens(delta.served_by))
                    meter.tokens(len(delta.token_ids))
                    meter.parts(delta.parts or ())
                    reason = delta.finish_reason or reason
                    yield delta
                    if output.finished:
                        break
        except Exception as error:
            reason = "error"
            self._metrics.recent.failed(generation.request.client_id, error)
            if trace is not None:
                trace.note_failure(error)
            raise
        finally:
            meter.ended(reason)

    def _fit(self, num_prompt_tokens: int, request: GenerationRequest) -> int:
        """Return the maximum tokens to generate. Raises InvalidRequest if prompt and output exceed the context."""
        max_model_len = self._pool.max_model_len()
        if max_model_len is None:
            raise NoWorker("no decode worker is ready")
        left = max_model_len - num_prompt_tokens
        if left < 1:
            raise context_error(prompt_field(request.prompt), max_model_len, num_prompt_tokens)
        if request.max_tokens is None:
            wanted = request.default_max_tokens or self._model.default_max_tokens or left
            return min(max(wanted, request.sampling.min_tokens), left)
        if request.max_tokens > left:
            raise context_error("max_tokens", max_model_len, num_prompt_tokens, request.max_tokens)
        return max(1, request.max_tokens)  # workers generate at least one token; `CompletionOutput` drops it for 0


def num_common_chars(one: str, other: str) -> int:
    """Return the length of the longest common prefix of two texts."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def prompt_field(prompt: str | Sequence[int] | ChatPrompt) -> str:
    """Return the request's field that holds the prompt."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"
