"""The requests of one bidirectional stream, which share its responses."""

import asyncio
from collections.abc import Sequence

from baton.protos.open_inference_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse
from baton.router.auth.client import Client
from baton.router.errors import REQUEST_PANICS
from baton.router.generation import CompletionDelta, Generation
from baton.router.grpc.call import client_of, counted
from baton.router.grpc.response_writer import ResponseWriter
from baton.router.kserve.errors import error_text
from baton.router.kserve.inference import Inference
from baton.router.kserve.messages import IS_FINAL, WANTS_FINAL
from baton.router.kserve.run import Context, Receive, Run
from baton.router.kserve.tensors import OutputTensor
from baton.router.service import RouterService
from baton.rpc.status import Unauthenticated


class StreamedRequest:
    """One request of a stream.

    Each of its responses says whether it is the last. The last one has outputs, or is empty if the client wants that.
    """

    def __init__(
        self, service: RouterService, request: ModelInferRequest, context: Context, turn: asyncio.Lock
    ) -> None:
        """`turn`: of the stream's requests to write a response."""
        self._service = service
        self._request = request
        self._context = context
        self._turn = turn
        self._run = Run(service, request, context)
        self._wants_final = WANTS_FINAL in request.parameters and request.parameters[WANTS_FINAL].bool_param

    async def serve(self) -> None:
        """Write all responses; an error is one of them. Raises SlowClient."""
        try:
            client = client_of(self._service, self._context)  # a stream may outlive its key
        except Unauthenticated as error:
            async with self._writer(key=None) as writer:
                await writer.send(self._failure(error))
            return
        async with self._writer(client.fairness_key) as writer:
            try:
                with REQUEST_PANICS:
                    client.begin()
                    with counted(self._service, self._request.ByteSize(), self._context, client):
                        await self._serve(client, writer)
            except Exception as error:
                await writer.send(self._failure(error))

    def _writer(self, key: str | None) -> ResponseWriter:
        return ResponseWriter(self._context, self._service.unread, self._run.command_id, key, self._turn)

    async def _serve(self, client: Client, writer: ResponseWriter) -> None:
        inference = await self._run.read(may_stream=True)
        if inference.body.stream:
            await self._run.generate(inference, client, lambda generation: self._begin(inference, generation, writer))
            await writer.finish()
        else:
            await writer.send(self._message(await self._run.whole(inference, client), not self._wants_final))
        if self._wants_final:
            await writer.send(self._message([], is_final=True))

    def _begin(self, inference: Inference, generation: Generation, writer: ResponseWriter) -> Receive:
        """Start to write the deltas, and return what receives them."""
        outputs, num_open = self._run.outputs(inference, generation), inference.body.n

        def message(delta: CompletionDelta) -> ModelStreamInferResponse | None:
            nonlocal num_open
            num_open -= delta.finish_reason is not None
            tensors = outputs.of_delta(delta)
            return self._message(tensors, not num_open and not self._wants_final) if tensors else None

        writer.begin(message)
        return writer.add

    def _message(self, outputs: Sequence[OutputTensor], is_final: bool) -> ModelStreamInferResponse:
        response = ModelStreamInferResponse(infer_response=self._run.response(outputs))
        response.infer_response.parameters[IS_FINAL].bool_param = is_final
        return response

    def _failure(self, error: Exception) -> ModelStreamInferResponse:
        response = ModelInferResponse(model_name=self._run.model_name, id=self._request.id)
        response.parameters[IS_FINAL].bool_param = True
        return ModelStreamInferResponse(error_message=error_text(error), infer_response=response)
