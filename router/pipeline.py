"""The life of a request in the router.

0. Take it on once it is its turn, unless the router is full or shutting down (`Admission`, held by the front end until
   all is generated).
1. Render the chat template and tokenise the prompt, off the event loop.
2. Check that it fits the model, draw a seed if none was given.
3. Choose workers by what their caches hold and what they have to do, and send the first choice (`Dispatcher`).
4. Pass its news on: detokenised, cut at stop strings (`CompletionOutput`).
5. Once the first choice's prompt is in its decode worker's cache, send the other choices there.

A request whose time is over ends wherever it is: its choices are cancelled at the workers.
"""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace

from baton.router.admission.deadline import deadline_of, news_within, result_within
from baton.router.completion import CompletionOutput
from baton.router.errors import FieldError, NoWorker
from baton.router.generation import ChatPrompt, ChoiceDelta, Generation, GenerationRequest, cached_tokens
from baton.router.limits import CONTEXT_LENGTH_EXCEEDED, context_error, text_length_error
from baton.router.metrics.metrics import ChoiceMeter, RouterMetrics
from baton.router.model_info import ModelInfo
from baton.router.resumption.recall import Recall
from baton.router.resumption.resumed_output import Output, ResumedOutput, recalled_first
from baton.router.stream_merge import StreamMerge
from baton.router.text.tokenizer import Tokenizer
from baton.router.workers.dispatcher import Dispatcher
from baton.router.workers.pool import WorkerPool


class Pipeline:
    """Turns requests into news of their choices."""

    def __init__(
        self,
        model: ModelInfo,
        tokenizer: Tokenizer,
        pool: WorkerPool,
        dispatcher: Dispatcher,
        metrics: RouterMetrics,
        default_timeout_s: float | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._pool = pool
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._default_timeout_s = default_timeout_s  # of requests that state none
        self.recall = Recall(pool, metrics)

    async def prepare(self, request: GenerationRequest) -> Generation:
        """The request as tokens within the model's limits.

        Raises InvalidRequest, NoWorker when none is ready, or DeadlineExceeded.
        """
        deadline_s = deadline_of(request.context, self._default_timeout_s)
        if deadline_s is None:
            return await self._prepare(request)
        return await result_within(deadline_s, self._prepare(request), "was tokenised")

    def generate(self, generation: Generation) -> AsyncGenerator[ChoiceDelta, None]:
        """News of the generation's choices, each to its end. Closing it cancels what is left at the workers.

        Raises DeadlineExceeded when the request's time is over, and what `Dispatcher.run` does.
        """
        deadline_s = deadline_of(generation.request.context, self._default_timeout_s)
        news = self._choice(generation, 0) if generation.request.n == 1 else self._news(generation)
        return news if deadline_s is None else news_within(deadline_s, news)

    async def _prepare(self, request: GenerationRequest) -> Generation:
        field = prompt_field(request.prompt)
        if self._pool.max_model_len() is None:
            raise NoWorker("no decode worker is ready")
        token_ids = await self.tokenize(
            request.prompt, request.add_special_tokens, request.cache_salt, request.context.fairness_key
        )
        if not token_ids:
            raise FieldError(field, "the prompt is empty; at least one token is needed")
        seed = secrets.randbits(63) if request.seed is None else request.seed % (1 << 64)
        max_tokens = self._fit(len(token_ids), request)
        sampling = replace(request.sampling, seed=seed, max_tokens=max_tokens)
        if sampling.min_tokens > max_tokens and request.max_tokens is None:
            text = f"min_tokens is {sampling.min_tokens}, but the context leaves {max_tokens} tokens"
            raise FieldError("min_tokens", text, CONTEXT_LENGTH_EXCEEDED)
        sampling.validate(self._model.vocab_size)
        self._metrics.request_came(max_tokens, request.n)
        return Generation(replace(request, prompt=()), token_ids, sampling)  # it may be megabytes

    async def tokenize(
        self,
        prompt: str | Sequence[int] | ChatPrompt,
        add_special_tokens: bool,
        cache_salt: str = "",
        client: str = "",
    ) -> list[int]:
        """Return the token ids of a prompt; clients use the tokenizer in turn.

        Raises FieldError if it cannot fit the context or has ids that the model lacks.
        """
        field = prompt_field(prompt)
        if isinstance(prompt, ChatPrompt):
            prompt = await self._tokenizer.render(
                prompt.messages,
                prompt.add_generation_prompt,
                prompt.continue_final_message,
                prompt.template_options,
                client,
            )
        if isinstance(prompt, str):
            max_chars = self.context_len() * self._tokenizer.max_token_chars
            if len(prompt) > max_chars:
                raise text_length_error(field, self.context_len(), len(prompt), max_chars)
            return await self._tokenizer.encode(prompt, add_special_tokens, cache_salt, client)
        token_ids = list(prompt)
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= self._model.vocab_size):
            raise FieldError(field, f"the prompt has a token id outside 0 to {self._model.vocab_size - 1}")
        return token_ids

    def context_len(self) -> int:
        """The longest prompt plus output in tokens: the workers', or while there is none the checkpoint's."""
        return self._pool.max_model_len() or self._model.max_model_len

    async def _news(self, generation: Generation) -> AsyncGenerator[ChoiceDelta, None]:
        """News of several choices, to the end of all."""
        num_choices = generation.request.n
        async with StreamMerge[ChoiceDelta]() as merged:
            merged.add(self._choice(generation, 0))
            num_first_tokens, decode_worker = 0, ""
            async for delta in merged:
                if num_choices > 1 and delta.index == 0:
                    num_first_tokens += len(delta.token_ids)
                    decode_worker = delta.served_by.decode_worker if delta.served_by else decode_worker
                    # The second token shows that the whole prompt is there, however it came.
                    if num_first_tokens > 1 or delta.finish_reason is not None:
                        for index in range(1, num_choices):
                            merged.add(self._choice(generation, index, decode_worker))
                        num_choices = 1
                yield delta

    async def _choice(
        self, generation: Generation, index: int, decode_worker: str | None = None
    ) -> AsyncGenerator[ChoiceDelta, None]:
        """News of one choice, to its end."""
        output: Output = CompletionOutput(index, generation, self._tokenizer)
        raw_news = self._dispatcher.run(generation, index, decode_worker)
        if (start := generation.start(index)) is not None:
            output = ResumedOutput(output, start, len(generation.token_ids))
            raw_news = recalled_first(start, raw_news)
        meter = ChoiceMeter(self._metrics)
        reason = "abort"
        told_prompt = index > 0  # the first choice tells what the prompt cost
        try:
            async with aclosing(raw_news) as deltas:
                async for raw in deltas:
                    delta = output.push(raw)
                    if delta.served_by is not None and not told_prompt:
                        told_prompt = True
                        self._metrics.prompt_done(len(generation.token_ids), cached_tokens(delta.served_by))
                    meter.tokens(len(delta.token_ids))
                    reason = delta.finish_reason or reason
                    yield delta
                    if output.finished:
                        break
        except Exception:
            reason = "error"
            raise
        finally:
            meter.ended(reason)

    def _fit(self, num_prompt_tokens: int, request: GenerationRequest) -> int:
        """The most tokens to generate. Raises InvalidRequest if prompt and output do not fit the context."""
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
        return max(1, request.max_tokens)  # workers generate at least one; the choice leaves it out if it is unwanted


def prompt_field(prompt: str | Sequence[int] | ChatPrompt) -> str:
    """The field that a prompt came in."""
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"
