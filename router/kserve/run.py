"""One gRPC request and its generation."""

import secrets
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import Any

from grpc.aio import ServicerContext

from baton.protos.open_inference_pb2 import ModelInferRequest, ModelInferResponse
from baton.router.auth.client import Client
from baton.router.errors import FieldError
from baton.router.generation import CompletionDelta, Generation, GenerationRequest
from baton.router.grpc.auth_interceptor import text_metadata
from baton.router.grpc.call import traced
from baton.router.http.headers import read_context
from baton.router.kserve.inference import Inference, find_model
from baton.router.kserve.messages import read_request, response_message
from baton.router.kserve.outputs import Outputs
from baton.router.kserve.tensors import OutputTensor
from baton.router.limits import check_echo
from baton.router.openai.completions import completion_generation
from baton.router.served_model import ServedModel
from baton.router.service import RouterService
from baton.router.tracing.request_trace import TEXT_COMPLETION, RequestTrace
from baton.rpc.status import NotFound

Context = ServicerContext[Any, Any]
Receive = Callable[[CompletionDelta], None]


class Run:
    """One request and its generation."""

    def __init__(self, service: RouterService, request: ModelInferRequest, context: Context) -> None:
        self._service = service
        self._request = request
        self._context = context
        self._headers = text_metadata(context.invocation_metadata())
        self.command_id = f"kserve-{secrets.token_hex(8)}"

    @cached_property
    def model(self) -> ServedModel:
        """The model of the request. Raises NotFound, or FieldError if the request has to name one."""
        return find_model(self._service.models, self._request.model_name, self._request.model_version)

    @property
    def model_name(self) -> str:
        """The name of the model; empty if the request names none that is served."""
        try:
            return self.model.name
        except (NotFound, FieldError):
            return ""

    async def read(self, may_stream: bool) -> Inference:
        """Return the valid inference. Raises NotFound or InvalidRequest."""
        await self._service.models.find(self._request.model_name)  # reports an unknown one before the inputs are read
        inference = await read_request(self._request, may_stream).read()
        inference.body.check(self._service.config, num_prompts=1)
        return inference

    def response(self, outputs: Sequence[OutputTensor]) -> ModelInferResponse:
        """Return a response with these outputs."""
        return response_message(self.model.name, self._request.id, outputs)

    async def whole(self, inference: Inference, client: Client) -> list[OutputTensor]:
        """Return the outputs of all completions."""
        completions = [CompletionDelta(index) for index in range(inference.body.n)]

        def begin(_generation: Generation) -> Receive:
            return lambda delta: completions[delta.index].extend(delta)

        generation = await self.generate(inference, client, begin)
        return self.outputs(inference, generation).of_whole(completions)

    def outputs(self, inference: Inference, generation: Generation) -> Outputs:
        """Return the converter to output tensors."""
        prompt = inference.body.prompt
        prefix = prompt if inference.body.echo and isinstance(prompt, str) else ""
        check_echo([prefix], inference.body.n)
        return Outputs(inference, len(generation.token_ids), prefix)

    async def generate(
        self, inference: Inference, client: Client, begin: Callable[[Generation], Receive]
    ) -> Generation:
        """Generate all completions; `begin` returns what receives their deltas.

        The client is charged for the prompt at once, and for the output at the end; if that comes early, also for
        output that it does not get.
        """
        with traced(self._service, TEXT_COMPLETION, self.command_id, self._context, client) as trace:
            if trace is not None:
                trace.wait(self.model.name)
            return await self._generate(self._wanted(inference, client, trace), client, begin)

    async def _generate(
        self, wanted: GenerationRequest, client: Client, begin: Callable[[Generation], Receive]
    ) -> Generation:
        model, num_tokens = self.model, 0
        async with client.hold(wanted.n), model.admission.admit(wanted.n, wanted.context):
            generation = await model.pipeline.prepare(wanted)
            client.charge(len(generation.token_ids))
            receive = begin(generation)
            try:
                async with aclosing(model.pipeline.generate(generation)) as deltas:
                    async for delta in deltas:
                        num_tokens += len(delta.token_ids)
                        receive(delta)
            except BaseException:
                num_tokens = max(num_tokens, generation.generated.num_tokens)
                raise
            finally:
                client.charge(num_tokens)
        return generation

    def _wanted(self, inference: Inference, client: Client, trace: RequestTrace | None) -> GenerationRequest:
        body, timeout_s = inference.body, inference.timeout_s
        if timeout_s is None:
            timeout_s = self._service.config.default_timeout_s
        context = read_context(self._headers, body.user, body.priority, client, timeout_s, trace)
        common = completion_generation(self.model, body, context, client.cache_salt(body.cache_salt or ""))
        assert isinstance(body.prompt, str)
        return replace(common, request_id=self.command_id, prompt=body.prompt)
