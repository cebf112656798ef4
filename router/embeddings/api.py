"""Handler of embedding requests.

1. Admit the request. It counts as one completion: its inputs go to the workers a few batches at a time.
2. Choose the workers whose embeddings can be compared, and check the options against their pooling.
3. Tokenise the inputs, and charge the client for them.
4. Compute the embeddings at prefill workers (`Embedder`), and send them all at once.
"""

import asyncio
import time

from baton.engine.pooling.config import PoolingParams
from baton.router.admission.deadline import result_within
from baton.router.dispatch.embedding_job import EmbeddingJob
from baton.router.embeddings.request import EmbeddingRequest, Input, read_inputs
from baton.router.embeddings.response import encoded, max_bytes
from baton.router.embeddings.tokens import InputTokenizer, held_bytes
from baton.router.errors import FieldError
from baton.router.http.exchange import Exchange
from baton.router.http.headers import DECODE, PLAN, read_context
from baton.router.inline_work import InlineWork
from baton.router.openai.response import command_id
from baton.router.policy.embedding import EmbeddingFamily
from baton.router.request_context import RequestContext
from baton.router.served_model import ServedModel
from baton.router.service import RouterService

MAX_INLINE_BYTES = 64 << 10  # of a response that is encoded on the event loop; larger ones use a thread


class EmbeddingsApi:
    """Handler of embedding requests."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._inline = InlineWork()

    async def create(self, body: EmbeddingRequest, exchange: Exchange) -> None:
        """Compute the embeddings of all inputs and send them."""
        service, client = self._service, exchange.client
        begun_s = time.perf_counter()
        model = await service.models.find(body.model)
        inputs: list[Input] = []
        reading = read_inputs(body.input)
        while (each := await self._inline.run_paced(lambda: next(reading, None))) is not None:
            inputs.append(each)
        timeout_s, trace = service.config.default_timeout_s, exchange.trace
        context = read_context(exchange.headers, body.user, body.priority, client, timeout_s, trace)
        if trace is not None:
            trace.wait(model.name)
        if context.hints.decode_worker is not None or context.hints.plan is not None:
            field = DECODE if context.hints.decode_worker is not None else PLAN
            raise FieldError(field, f"{field} has no effect: embeddings need no decode worker; omit it")
        async with exchange.watch(), client.hold(1), model.admission.admit(1, context, generates=False):
            work = self._embedded(model, body, inputs, context, exchange)
            if context.deadline_s is not None:
                response = await result_within(context.deadline_s, work, "was computed")
            else:
                response = await work
            model.metrics.embeddings_done(time.perf_counter() - begun_s)
            await exchange.respond(200, response)

    async def _embedded(
        self,
        model: ServedModel,
        body: EmbeddingRequest,
        inputs: list[Input],
        context: RequestContext,
        exchange: Exchange,
    ) -> bytes:
        """Return the response."""
        family = model.embedder.family(context, model.adapter)
        params = body.params(family.pooling)
        is_base64 = body.encoding_format == "base64"
        num_bytes = self._check_size(len(inputs), family, params, is_base64)
        cache_salt = exchange.client.cache_salt(body.cache_salt or "")
        bounds = InputTokenizer(model.tokenizer, model.info.vocab_size, model.embedder.context_len(family))
        tokens = await bounds.tokens(body, inputs, cache_salt, context.fairness_key)
        body.input = None
        inputs.clear()
        exchange.forget_body(held_bytes(tokens))
        num_tokens = sum(map(len, tokens))
        exchange.client.charge(num_tokens)
        job = EmbeddingJob(
            request_id=command_id(exchange.request_id),
            inputs=tokens,
            family=family,
            params=params,
            cache_salt=cache_salt,
            context=context,
        )
        if (trace := context.trace) is None:
            vectors = await model.embedder.embed(job)
        else:
            trace.note_prompt(num_tokens)
            with trace.step("embed"):
                vectors = await model.embedder.embed(job)
        if num_bytes <= MAX_INLINE_BYTES:
            return encoded(vectors, is_base64, model.name, num_tokens)
        return await asyncio.to_thread(encoded, vectors, is_base64, model.name, num_tokens)

    def _check_size(self, num_inputs: int, family: EmbeddingFamily, params: PoolingParams, is_base64: bool) -> int:
        """Return about the bytes of the response. Raises FieldError if the router would not hold as many."""
        size = params.dimensions or family.pooling.size
        num_bytes = max_bytes(num_inputs, size, is_base64)
        limit = self._service.config.max_request_unread_bytes
        if num_bytes > limit:
            advice = "send fewer inputs" if is_base64 else "send fewer inputs, or set encoding_format to base64"
            text = f"{num_inputs} embeddings of {size} numbers take up to {num_bytes} bytes, over the limit of {limit}"
            raise FieldError("input", f"{text}; {advice}")
        return num_bytes
