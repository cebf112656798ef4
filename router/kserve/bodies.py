"""Bodies of the HTTP requests."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import ConfigDict, Field, PrivateAttr

from baton.router.errors import FieldError
from baton.router.kserve import tensors
from baton.router.kserve.inference import MAX_PARAMETERS, InferenceInputs
from baton.router.kserve.tensors import Value
from baton.router.openai.ignored_fields import Label
from baton.router.openai.request_body import AtMost, RequestBody

MAX_TENSORS = 64
MAX_DIMENSIONS = 8
BINARY_SIZE, BINARY_DATA, BINARY_OUTPUT = "binary_data_size", "binary_data", "binary_data_output"

Parameters = Annotated[dict[str, object], AtMost(MAX_PARAMETERS)]


class InferInput(RequestBody):
    """An input tensor. Its contents are `data`, or follow the JSON of the body."""

    name: str
    datatype: str
    shape: Annotated[list[int], AtMost(MAX_DIMENSIONS)]
    parameters: Parameters = Field(default_factory=dict)
    data: Annotated[list[object], AtMost(MAX_TENSORS)] | None = None

    def binary_size(self) -> int | None:
        """Return the size of the contents behind the JSON in bytes; None if there are none. Raises FieldError."""
        for name in self.parameters:
            if name != BINARY_SIZE:
                raise FieldError(self.name, f"{self.name[:50]}: the parameter {name[:50]!r} is not supported")
        size = self.parameters.get(BINARY_SIZE)
        if size is not None and (type(size) is not int or size < 0):
            raise FieldError(self.name, f"{self.name[:50]}: {BINARY_SIZE} must be a number of bytes")
        return size if isinstance(size, int) else None


class InferOutput(RequestBody):
    """A requested output tensor."""

    name: str
    parameters: Parameters = Field(default_factory=dict)

    def is_binary(self, default: bool) -> bool:
        """Return whether the contents should follow the JSON of the response. Raises FieldError."""
        for name in self.parameters:
            if name != BINARY_DATA:
                raise FieldError(self.name, f"{self.name[:50]}: the parameter {name[:50]!r} is not supported")
        return _flag(self.name, BINARY_DATA, self.parameters.get(BINARY_DATA, default))


class InferBody(RequestBody):
    """An inference with tensors, in JSON or behind it."""

    id: Label = ""
    model_name: Label | None = None
    model_version: Label | None = None
    parameters: Parameters = Field(default_factory=dict)
    inputs: Annotated[list[InferInput], Field(min_length=1), AtMost(MAX_TENSORS)]
    outputs: Annotated[list[InferOutput], AtMost(MAX_TENSORS)] = Field(default_factory=list)
    _binary: bytes | bytearray = PrivateAttr(default=b"")

    def attach(self, binary: bytes | bytearray) -> None:
        """Add the binary contents that follow the JSON, in the order of the inputs."""
        self._binary = binary

    def inference(self) -> InferenceInputs:
        """Return the decoded inference. Raises FieldError that names the tensor."""
        names = [each.name for each in self.outputs]
        return InferenceInputs(
            inputs=self._decoded(), parameters=self.parameters, outputs=names, request_id=self.id, may_stream=False
        )

    def binary_outputs(self) -> Mapping[str, bool]:
        """Return by name whether a requested output is binary; "": the default of all. Raises FieldError."""
        default = _flag("parameters", BINARY_OUTPUT, self.parameters.get(BINARY_OUTPUT, False))
        return {"": default, **{each.name: each.is_binary(default) for each in self.outputs}}

    def _decoded(self) -> dict[str, Value]:
        decoded: dict[str, Value] = {}
        start = 0
        for each in self.inputs:
            tensors.check_input(each.name, each.datatype, each.shape)
            if each.name in decoded:
                raise FieldError(each.name, f"{each.name} is given twice")
            size = each.binary_size()
            if (size is None) == (each.data is None):
                text = f"either in data, or behind the JSON with {BINARY_SIZE}"
                raise FieldError(each.name, f"{each.name}: the contents must be given {text}")
            if size is None:
                decoded[each.name] = tensors.from_values(each.name, each.data or ())
                continue
            end = start + size
            if end > len(self._binary):
                text = f"{BINARY_SIZE} is {size}, but {len(self._binary) - start} bytes are left in the body"
                raise FieldError(each.name, f"{each.name}: {text}")
            decoded[each.name] = tensors.from_raw(each.name, self._binary[start:end])
            start = end
        if start != len(self._binary):
            text = f"the body has {len(self._binary)} bytes behind its JSON, but the inputs have {start}"
            raise FieldError("inputs", f"inputs: {text}")
        self._binary = b""
        return decoded


class GenerateBody(RequestBody):
    """An inference with the inputs and parameters as fields of their names."""

    model_config = ConfigDict(extra="allow")

    text_input: str
    parameters: Parameters = Field(default_factory=dict)
    id: Label = ""

    def inference(self, may_stream: bool) -> InferenceInputs:
        """Return the decoded inference. `may_stream`: the call can return several responses."""
        fields = {name: value for name, value in (self.model_extra or {}).items() if value is not None}
        return InferenceInputs(
            inputs={tensors.TEXT_INPUT: self.text_input},
            parameters={**self.parameters, **fields},
            request_id=self.id,
            may_stream=may_stream,
        )


def _flag(name: str, parameter: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise FieldError(name, f"{name[:50]}: {parameter} must be true or false")
    return value
