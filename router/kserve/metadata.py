"""Descriptions of the server and its models."""

from importlib import metadata
from typing import Any

from google.protobuf.message import Message

from baton.protos import open_inference_pb2 as pb
from baton.router.kserve.inference import VERSION, find_model
from baton.router.kserve.tensors import INPUT_SHAPE, INPUTS, OUTPUTS, TEXT_INPUT, Datatype
from baton.router.service import RouterService

PLATFORM = "baton"
EXTENSIONS = ("binary_tensor_data", "generate", "model_configuration", "model_repository", "parameters")
DATA_TYPES: dict[Datatype, pb.DataType.ValueType] = {
    "BYTES": pb.TYPE_STRING,
    "BOOL": pb.TYPE_BOOL,
    "UINT32": pb.TYPE_UINT32,
}


class Metadata:
    """Descriptions of one router and its models, as messages and as JSON objects with the same names."""

    def __init__(self, service: RouterService) -> None:
        self._service = service

    def server(self) -> pb.ServerMetadataResponse:
        """Return the name, version and extensions of the server."""
        version = metadata.version("baton-serve")
        return pb.ServerMetadataResponse(name=PLATFORM, version=version, extensions=EXTENSIONS)

    def model(self, name: str, version: str) -> pb.ModelMetadataResponse:
        """Return the tensors of a model. Raises NotFound."""
        model = find_model(self._service.models, name, version)
        response = pb.ModelMetadataResponse(name=model.name, versions=[VERSION], platform=PLATFORM)
        for tensor, datatype in INPUTS.items():
            response.inputs.add(name=tensor, datatype=datatype, shape=INPUT_SHAPE)
        for tensor, kind in OUTPUTS.items():
            response.outputs.add(name=tensor, datatype=kind.datatype, shape=kind.shape)
        return response

    def config(self, name: str, version: str) -> pb.ModelConfig:
        """Return the configuration of a model. Raises NotFound."""
        model = find_model(self._service.models, name, version)
        policy = pb.ModelTransactionPolicy(decoupled=True)
        config = pb.ModelConfig(name=model.name, platform=PLATFORM, backend=PLATFORM, model_transaction_policy=policy)
        for tensor, datatype in INPUTS.items():
            is_optional = tensor != TEXT_INPUT
            config.input.add(name=tensor, data_type=DATA_TYPES[datatype], dims=INPUT_SHAPE, optional=is_optional)
        for tensor, kind in OUTPUTS.items():
            config.output.add(name=tensor, data_type=DATA_TYPES[kind.datatype], dims=kind.shape)
        return config

    def is_model_ready(self, name: str, version: str) -> bool:
        """Return whether a request to the model would be served now. Raises NotFound."""
        return find_model(self._service.models, name, version).is_ready()

    def index(self, only_ready: bool) -> pb.RepositoryIndexResponse:
        """Return the list of models. `only_ready`: only those of which a request would be served now."""
        response = pb.RepositoryIndexResponse()
        for model in self._service.models:
            is_ready = model.is_ready()
            if is_ready or not only_ready:
                state, reason = ("READY", "") if is_ready else ("UNAVAILABLE", "no worker is ready")
                response.models.add(name=model.name, version=VERSION, state=state, reason=reason)
        return response


def as_json(message: Message) -> dict[str, object]:
    """Return a message as a JSON object, as Triton writes it: integers of 64 bits as numbers, and no field omitted."""
    return {field.name: _plain(field, getattr(message, field.name)) for field in message.DESCRIPTOR.fields}


def _plain(field: Any, value: Any) -> object:
    if field.is_repeated:
        return [_element(field, each) for each in value]
    return _element(field, value)


def _element(field: Any, value: Any) -> object:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[value].name
    return as_json(value) if isinstance(value, Message) else value
