"""Bodies of the HTTP responses, for the description of the API."""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict


class KServeError(TypedDict):
    """An error."""

    error: str


class IndexedModel(TypedDict):
    """A model, and whether a request would be served now."""

    name: str
    version: str
    state: Literal["READY", "UNAVAILABLE"]
    reason: str


class Liveness(TypedDict):
    """The process is alive."""

    live: bool


class ServerReadiness(TypedDict):
    """A request would be served now."""

    ready: bool


class ModelReadiness(TypedDict):
    """A request to the model would be served now."""

    name: str
    ready: bool


class ServerMetadata(TypedDict):
    """The server."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(TypedDict):
    """A tensor that the model takes or returns; -1: any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(TypedDict):
    """The tensors of the model."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class InferredTensor(TypedDict):
    """An output. Without `data`, its contents of `binary_data_size` bytes follow the JSON."""

    name: str
    datatype: str
    shape: list[int]
    data: NotRequired[list[str | int]]
    parameters: NotRequired[dict[str, int]]


class Inferred(TypedDict):
    """The outputs of an inference."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[InferredTensor]


class Generated(TypedDict):
    """The outputs of a generation, of which those with several elements are lists."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    text_output: NotRequired[str | list[str]]
    finish_reason: NotRequired[str | list[str]]
    num_input_tokens: NotRequired[int]
    num_output_tokens: NotRequired[int | list[int]]
    token_ids: NotRequired[int | list[int]]


VERSIONS = ("", "/versions/{version}")
INDEX = "/v2/repository/index"  # by POST, without a body
# Bodies of the responses by path. Those of `generate_stream` are events.
GETS: Mapping[str, Any] = {
    "/v2": ServerMetadata,
    "/v2/health/live": Liveness,
    "/v2/health/ready": ServerReadiness,
    **{
        f"/v2/models/{{name}}{version}{path}": body
        for version in VERSIONS
        for path, body in (("", ModelMetadata), ("/ready", ModelReadiness), ("/config", dict[str, object]))
    },
}
POSTS: Mapping[str, Any] = {
    f"/v2/models/{{name}}{version}/{path}": body
    for version in VERSIONS
    for path, body in (("infer", Inferred), ("generate", Generated))
}
EVENTS: Mapping[str, Any] = {f"/v2/models/{{name}}{version}/generate_stream": Generated for version in VERSIONS}
