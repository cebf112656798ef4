"""The gRPC service `baton.v1.Inference`: the same pipeline and options as over HTTP."""

import math
import secrets
from contextlib import aclosing

from grpc.aio import ServicerContext

from baton.engine.errors import InvalidRequest
from baton.protos import common_pb2
from baton.protos.common_pb2 import ServedBy
from baton.protos.router_pb2 import GenerateRequest, GenerateResponse
from baton.protos.router_pb2 import Usage as UsageMessage
from baton.protos.router_pb2_grpc import InferenceServicer
from baton.router.admission.deadline import deadline_after
from baton.router.auth.client import Client
from baton.router.errors import REQUEST_PANICS
from baton.router.generation import CompletionDelta, Generation, GenerationRequest, cached_tokens
from baton.router.grpc.call import abort, client_of, counted, traced
from baton.router.grpc.response_writer import ResponseWriter
from baton.router.inline_work import InlineWork
from baton.router.limits import (
    MAX_ENTRIES,
    check_logprobs,
    check_num_completions,
    check_stop,
    check_text,
    check_worker_name,
    context_error,
)
from baton.router.request_context import PLANS, RequestContext, RoutingHints
from baton.router.served_model import ServedModel
from baton.router.service import RouterService
from baton.router.tracing.request_trace import TEXT_COMPLETION, RequestTrace
from baton.rpc.requests import sampling_from_proto
from baton.settings.names import NAME_RULE, is_name

Context = ServicerContext[GenerateRequest, GenerateResponse]

FINISH_NUMBERS = {
    "stop": common_pb2.FINISH_REASON_STOP,
    "length": common_pb2.FINISH_REASON_LENGTH,
    "error": common_pb2.FINISH_REASON_ERROR,
}


class InferenceService(InferenceServicer):
    """Implementation of the service."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._inline = InlineWork()

    async def Generate(  # type: ignore[override]  # noqa: N802  # the service's name; the stubs have a generator
        self, request: GenerateRequest, context: Context
    ) -> None:
        """Stream the output of one prompt. Cancelling the call cancels the completions at the workers."""
        request_id = request.request_id or secrets.token_hex(8)
        try:
            with REQUEST_PANICS:
                client = client_of(self._service, context)
                with traced(self._service, TEXT_COMPLETION, request_id, context, client) as trace:
                    await self._serve(request, request_id, client, context, trace)
        except Exception as error:
            await abort(context, error, request_id)

    async def _serve(
        self, request: GenerateRequest, request_id: str, client: Client, context: Context, trace: RequestTrace | None
    ) -> None:
        """Read the request and generate its output. Raises its error."""
        client.begin()
        with counted(self._service, request.ByteSize(), context, client):
            model = await self._service.models.find(request.model)
            if trace is not None:
                trace.wait(model.name)
            wanted = await self._inline.run_paced(
                lambda: self._generation_request(model, request, request_id, client, trace)
            )
            async with ResponseWriter(context, self._service.unread, request_id, client.fairness_key) as writer:
                error = await self._generate(model, wanted, request_id, client, writer)
                await writer.finish()
        if error is not None:
            raise error

    async def _generate(
        self, model: ServedModel, wanted: GenerationRequest, request_id: str, client: Client, writer: ResponseWriter
    ) -> Exception | None:
        """Generate for the writer. Returns an error that occurs in mid-stream, to raise once all output is written.

        The client is charged for the prompt at once, and for the output at the end.
        """
        async with client.hold(wanted.n), model.admission.admit(wanted.n, wanted.context):
            generation = await model.pipeline.prepare(wanted)
            client.charge(len(generation.token_ids))
            check_logprobs([generation], whole=False)
            output = _Output(generation, request_id)
            writer.begin(output.message)
            try:
                async with aclosing(model.pipeline.generate(generation)) as deltas:
                    async for delta in deltas:
                        output.count(delta)
                        writer.add(delta)
            except Exception as error:
                for index, served_by in output.open_completions.items():
                    writer.add(CompletionDelta(index, finish_reason="error", served_by=served_by))
                return error
            finally:
                client.charge(output.num_tokens)
        return None

    def _generation_request(
        self, model: ServedModel, request: GenerateRequest, request_id: str, client: Client, trace: RequestTrace | None
    ) -> GenerationRequest:
        """Convert a message to the pipeline's request. Raises InvalidRequest."""
        config = self._service.config
        if request.WhichOneof("prompt") is None:
            raise InvalidRequest("text or token_ids is required")
        if not is_name(request_id):
            raise InvalidRequest(f"request_id must be {NAME_RULE}")
        num_completions = request.n or 1
        check_num_completions(config, 1, num_completions)
        check_stop(config, request.stop)
        check_text("cache_salt", request.cache_salt)
        check_text("fairness_key", request.fairness_key)
        given = request.sampling
        num_tokens, context_len = len(request.token_ids.ids), model.pipeline.context_len()
        if num_tokens >= context_len:  # first: checking millions of ids would block the event loop
            raise context_error("token_ids", context_len, num_tokens)
        for name, num_entries in (("logit_bias", len(given.logit_bias)), ("stop_token_ids", len(given.stop_token_ids))):
            if num_entries > MAX_ENTRIES:
                raise InvalidRequest(f"{name} has {num_entries} entries, over the limit of {MAX_ENTRIES}")
        return GenerationRequest(
            request_id=f"{request_id[:64]}-{secrets.token_hex(4)}",
            prompt=request.text if request.WhichOneof("prompt") == "text" else list(request.token_ids.ids),
            sampling=sampling_from_proto(given, model.info.sampling_defaults),
            seed=given.seed if given.HasField("seed") else None,
            max_tokens=given.max_tokens if given.HasField("max_tokens") else None,
            stop=tuple(request.stop),
            include_stop=request.include_stop_in_output,
            skip_special_tokens=request.skip_special_tokens,
            n=num_completions,
            cache_salt=client.cache_salt(request.cache_salt),
            adapter=model.adapter,
            context=_context(request, client, config.default_timeout_s, trace),
        )


class _Output:
    """Counts the output of one call and converts it to messages."""

    def __init__(self, generation: Generation, request_id: str) -> None:
        self.num_tokens = 0
        self.open_completions: dict[int, ServedBy] = {}  # completions that have begun and not finished
        self._generation = generation
        self._request_id = request_id
        self._num_open = generation.request.n
        self._num_cached: int | None = None  # prompt tokens, as the first worker reports

    def count(self, delta: CompletionDelta) -> None:
        """Count a delta."""
        self.num_tokens += len(delta.token_ids)
        if delta.served_by is not None and delta.index == 0 and self._num_cached is None:
            self._num_cached = cached_tokens(delta.served_by)
        if delta.served_by is not None:
            self.open_completions[delta.index] = delta.served_by
        if delta.finish_reason is not None:
            self.open_completions.pop(delta.index, None)

    def message(self, delta: CompletionDelta) -> GenerateResponse:
        """Return a delta's message; the last message of the last completion has the usage."""
        response = _response(self._request_id, delta)
        if delta.finish_reason is not None and delta.finish_reason != "error":
            self._num_open -= 1
            if not self._num_open:
                response.usage.CopyFrom(_usage(self._generation, self.num_tokens, self._num_cached or 0))
        return response


def _context(
    request: GenerateRequest, client: Client, default_timeout_s: float | None, trace: RequestTrace | None
) -> RequestContext:
    """Return the request's context. Raises InvalidRequest for an invalid plan, worker name or time limit."""
    hints = request.hints
    check_worker_name("hints.decode_worker", hints.decode_worker)
    check_worker_name("hints.prefill_worker", hints.prefill_worker)
    if hints.plan and hints.plan not in PLANS:
        raise InvalidRequest(f"hints.plan is {hints.plan[:50]!r}, but must be local or remote")
    if not 0 <= request.timeout_s < math.inf:
        raise InvalidRequest(f"timeout_s is {request.timeout_s}, but must be a number of seconds, or 0 for no limit")
    timeout_s = request.timeout_s or default_timeout_s
    return RequestContext(
        hints=RoutingHints(
            hints.decode_worker or None, hints.prefill_worker or None, PLANS[hints.plan] if hints.plan else None
        ),
        fairness_key=request.fairness_key if client.fairness_key is None else client.fairness_key,
        deadline_s=None if timeout_s is None else deadline_after(timeout_s),
        priority=client.priority(request.priority),
        tenant=client.tenant_id,
        trace=trace,
    )


def _usage(generation: Generation, num_tokens: int, num_cached: int) -> UsageMessage:
    num_prompt_tokens = len(generation.token_ids)
    return UsageMessage(prompt_tokens=num_prompt_tokens, completion_tokens=num_tokens, cached_tokens=num_cached)


def _response(request_id: str, delta: CompletionDelta) -> GenerateResponse:
    return GenerateResponse(
        request_id=request_id,
        index=delta.index,
        text=delta.text,
        token_ids=delta.token_ids,
        logprobs=delta.logprobs,
        prompt_logprobs=delta.prompt_logprobs,
        finish_reason=FINISH_NUMBERS.get(delta.finish_reason or "", common_pb2.FINISH_REASON_UNSPECIFIED),
        served_by=delta.served_by,
    )
