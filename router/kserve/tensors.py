"""The tensors of a language model, as Triton's vLLM backend names them, and their encodings.

Each input has one element. Binary contents are little-endian, as Triton's binary tensor data extension has them; each
element of type BYTES follows its length in 4 bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from baton.router.errors import FieldError

Datatype = Literal["BYTES", "BOOL", "UINT32"]
Value = str | bool

TEXT_INPUT, SAMPLING_PARAMETERS = "text_input", "sampling_parameters"
STREAM, EXCLUDE_INPUT = "stream", "exclude_input_in_output"
TEXT_OUTPUT, FINISH_REASON, TOKEN_IDS = "text_output", "finish_reason", "token_ids"
NUM_INPUT_TOKENS, NUM_OUTPUT_TOKENS = "num_input_tokens", "num_output_tokens"

# Inputs that ask for an output each.
RETURN_FLAGS: Mapping[str, str] = {
    f"return_{name}": name for name in (FINISH_REASON, NUM_INPUT_TOKENS, NUM_OUTPUT_TOKENS, TOKEN_IDS)
}
INPUTS: Mapping[str, Datatype] = {
    TEXT_INPUT: "BYTES",
    SAMPLING_PARAMETERS: "BYTES",
    STREAM: "BOOL",
    EXCLUDE_INPUT: "BOOL",
    **dict.fromkeys(RETURN_FLAGS, "BOOL"),
}
INPUT_SHAPE = (1,)


@dataclass(frozen=True, slots=True)
class OutputKind:
    """Type and shape of an output; -1: one element for each completion, or for each token."""

    datatype: Datatype
    shape: tuple[int, ...]


OUTPUTS: Mapping[str, OutputKind] = {
    TEXT_OUTPUT: OutputKind("BYTES", (-1,)),
    FINISH_REASON: OutputKind("BYTES", (-1,)),
    NUM_INPUT_TOKENS: OutputKind("UINT32", (1,)),
    NUM_OUTPUT_TOKENS: OutputKind("UINT32", (-1,)),
    TOKEN_IDS: OutputKind("UINT32", (-1,)),
}


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One output of a response, of shape `[len(values)]`."""

    name: str
    values: Sequence[str] | Sequence[int]

    @property
    def datatype(self) -> Datatype:
        """Type of the elements."""
        return OUTPUTS[self.name].datatype

    def raw(self) -> bytes:
        """Return the binary contents."""
        return b"".join(map(_raw_element, self.values))


def _raw_element(value: str | int) -> bytes:
    if isinstance(value, int):
        return value.to_bytes(4, "little")
    content = value.encode()
    return len(content).to_bytes(4, "little") + content


def check_input(name: str, datatype: str, shape: Sequence[int]) -> None:
    """Raise FieldError unless the model has an input of this name, type and shape."""
    if name not in INPUTS:
        text = f"inputs has an unknown tensor {_shown(name)}; the model takes {', '.join(INPUTS)}"
        raise FieldError("inputs", text)
    if datatype != INPUTS[name]:
        raise FieldError(name, f"{name}: datatype is {_shown(datatype)}, but must be {INPUTS[name]}")
    if tuple(shape) != INPUT_SHAPE:
        raise FieldError(name, f"{name}: shape is {list(shape[:8])}, but must be {list(INPUT_SHAPE)}")


def from_raw(name: str, content: bytes | bytearray) -> Value:
    """Return the element of an input from its binary contents. Raises FieldError."""
    if INPUTS[name] == "BOOL":
        if content not in (b"\0", b"\1"):
            raise FieldError(name, f"{name}: the contents of a BOOL must be one byte, 0 or 1")
        return content == b"\1"
    if len(content) < 4 or int.from_bytes(content[:4], "little") != len(content) - 4:
        raise FieldError(name, f"{name}: the contents of a BYTES must be 4 bytes with its length, and as many bytes")
    return _decoded(name, content[4:])


def from_values(name: str, values: Sequence[object]) -> Value:
    """Return the element of an input from a list of its elements. Raises FieldError."""
    while len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    if len(values) != 1:
        raise FieldError(name, f"{name}: the data has {len(values)} elements, but must have 1")
    return checked(name, values[0])


def checked(name: str, value: object) -> Value:
    """Return the value of an input if it has the right type. Raises FieldError."""
    if INPUTS[name] == "BOOL":
        if not isinstance(value, bool):
            raise FieldError(name, f"{name} must be true or false")
        return value
    if isinstance(value, bytes):
        return _decoded(name, value)
    if not isinstance(value, str):
        raise FieldError(name, f"{name} must be a string")
    return value


def check_outputs(names: Sequence[str]) -> None:
    """Raise FieldError for an output that the model does not have."""
    for name in names:
        if name not in OUTPUTS:
            text = f"outputs has an unknown tensor {_shown(name)}; the model returns {', '.join(OUTPUTS)}"
            raise FieldError("outputs", text)


def _decoded(name: str, content: bytes | bytearray) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise FieldError(name, f"{name}: the contents are not valid UTF-8") from error


def _shown(name: str) -> str:
    return repr(name[:50])
