"""The gRPC service `inference.GRPCInferenceService`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

from baton.protos import open_inference_pb2 as pb
from baton.protos.open_inference_pb2_grpc import GRPCInferenceServiceServicer
from baton.router.errors import REQUEST_PANICS
from baton.router.grpc.call import abort, client_of, counted
from baton.router.kserve.errors import error_text
from baton.router.kserve.metadata import Metadata
from baton.router.kserve.run import Context, Run
from baton.router.kserve.stream import StreamedRequest
from baton.router.service import RouterService

T = TypeVar("T")

OPEN_METHODS = ("ServerLive", "ServerReady")  # need no API key, like health over HTTP
MAX_STREAM_REQUESTS = 256  # of one stream at once; further ones stay unread


class KServeService(GRPCInferenceServiceServicer):
    """Implementation of the service. Methods that it lacks are UNIMPLEMENTED."""

    def __init__(self, service: RouterService) -> None:
        self._service = service
        self._metadata = Metadata(service)

    async def ServerLive(  # noqa: N802
        self, _request: pb.ServerLiveRequest, _context: Context
    ) -> pb.ServerLiveResponse:
        """Return whether the process is alive."""
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(  # noqa: N802
        self, _request: pb.ServerReadyRequest, _context: Context
    ) -> pb.ServerReadyResponse:
        """Return whether a request would be served now."""
        return pb.ServerReadyResponse(ready=self._service.is_ready())

    async def ModelReady(  # noqa: N802
        self, request: pb.ModelReadyRequest, context: Context
    ) -> pb.ModelReadyResponse:
        """Return whether a request to the model would be served now."""
        ready = await _or_abort(context, lambda: self._metadata.is_model_ready(request.name, request.version))
        return pb.ModelReadyResponse(ready=ready)

    async def ServerMetadata(  # noqa: N802
        self, _request: pb.ServerMetadataRequest, _context: Context
    ) -> pb.ServerMetadataResponse:
        """Return the name, version and extensions of the server."""
        return self._metadata.server()

    async def ModelMetadata(  # noqa: N802
        self, request: pb.ModelMetadataRequest, context: Context
    ) -> pb.ModelMetadataResponse:
        """Return the tensors of the model."""
        return await _or_abort(context, lambda: self._metadata.model(request.name, request.version))

    async def ModelConfig(  # noqa: N802
        self, request: pb.ModelConfigRequest, context: Context
    ) -> pb.ModelConfigResponse:
        """Return the configuration of the model."""
        config = await _or_abort(context, lambda: self._metadata.config(request.name, request.version))
        return pb.ModelConfigResponse(config=config)

    async def RepositoryIndex(  # noqa: N802
        self, request: pb.RepositoryIndexRequest, _context: Context
    ) -> pb.RepositoryIndexResponse:
        """Return the list of models."""
        return self._metadata.index(request.ready)

    async def ModelInfer(  # noqa: N802
        self, request: pb.ModelInferRequest, context: Context
    ) -> pb.ModelInferResponse:
        """Return the whole output of one prompt. Cancelling the call cancels the completions at the workers."""
        run = Run(self._service, request, context)
        try:
            with REQUEST_PANICS:
                client = client_of(self._service, context)
                client.begin()
                with counted(self._service, request.ByteSize(), context, client):
                    return run.response(await run.whole(await run.read(may_stream=False), client))
        except Exception as error:
            await abort(context, error, run.command_id, error_text(error))
            raise

    async def ModelStreamInfer(  # type: ignore[override]  # noqa: N802  # the stubs have a generator
        self, requests: AsyncIterator[pb.ModelInferRequest], context: Context
    ) -> None:
        """Serve the requests of a stream concurrently. Errors of a request are messages and do not end the stream.

        Cancelling the call cancels the completions of all its requests at the workers.
        """
        places, turn = asyncio.Semaphore(MAX_STREAM_REQUESTS), asyncio.Lock()

        async def serve(request: pb.ModelInferRequest) -> None:
            try:
                await StreamedRequest(self._service, request, context, turn).serve()
            finally:
                places.release()

        try:
            async with asyncio.TaskGroup() as group:
                async for request in requests:
                    await places.acquire()
                    group.create_task(serve(request))
        except ExceptionGroup as errors:
            await abort(context, errors.exceptions[0], "a stream")
        except Exception as error:
            await abort(context, error, "a stream")


async def _or_abort(context: Context, read: Callable[[], T]) -> T:
    """Return the result, or end the call with the status of its error."""
    try:
        return read()
    except Exception as error:
        await abort(context, error, "a call")
        raise
