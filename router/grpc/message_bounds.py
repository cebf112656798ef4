"""Limits of gRPC messages, checked before they are parsed.

The parser blocks the event loop for a whole message. Text takes milliseconds, but megabytes of tiny fields take
seconds, during which no other client is served.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from baton.protos import open_inference_pb2 as kserve
from baton.protos.router_pb2 import DESCRIPTOR, GenerateRequest
from baton.rpc.malformed import MessageRefused

SERVICE_NAME = DESCRIPTOR.services_by_name["Inference"].full_name
GENERATE = f"/{SERVICE_NAME}/Generate"
TEXT = GenerateRequest.TEXT_FIELD_NUMBER
TOKEN_IDS = GenerateRequest.TOKEN_IDS_FIELD_NUMBER
TOKEN_ID_BYTES = 6  # maximum size of an unpacked token id; a packed one has at most five
KSERVE_NAME = kserve.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
INFER = frozenset({f"/{KSERVE_NAME}/ModelInfer", f"/{KSERVE_NAME}/ModelStreamInfer"})
RAW_CONTENTS = kserve.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
INPUTS = kserve.ModelInferRequest.INPUTS_FIELD_NUMBER
CONTENTS = kserve.ModelInferRequest.InferInputTensor.CONTENTS_FIELD_NUMBER
BYTES_CONTENTS = kserve.InferTensorContents.BYTES_CONTENTS_FIELD_NUMBER
MAX_FIELDS = 1024
MAX_OPTION_BYTES = 512 << 10  # of all fields but the prompt: several times what valid options need
MAX_OTHER_BYTES = 64 << 10  # of a message to health or reflection, which need no API key

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
FIXED_SIZES = {FIXED64: 8, FIXED32: 4}


class MessageBounds:
    """Size limits of messages to the router's services."""

    def __init__(self, context_len: Callable[[], int]) -> None:
        """`context_len`: returns the maximum tokens of a prompt."""
        self._context_len = context_len

    def check(self, method: str, message: bytes) -> None:
        """Raise MessageRefused for a message over a limit, DecodeError for a malformed one."""
        if method == GENERATE:
            _check_generate(message, TOKEN_ID_BYTES * self._context_len())
        elif method in INFER:
            _check_infer(message)
        elif len(message) > MAX_OTHER_BYTES:
            raise MessageRefused(f"the request has {len(message)} bytes, over the limit of {MAX_OTHER_BYTES}")


@dataclass(frozen=True, slots=True)
class _Field:
    """A field in a message: its number, and where it and its value begin and end."""

    number: int
    is_bytes: bool
    start: int
    value_start: int
    end: int


def _check_generate(message: bytes, max_token_bytes: int) -> None:
    num_token_bytes = num_option_bytes = 0
    for num_fields, field in enumerate(_fields(message, 0, len(message)), 1):
        if field.number == TOKEN_IDS:
            num_token_bytes += field.end - field.start
        elif field.number != TEXT:
            num_option_bytes += field.end - field.start
        _check_counts(num_fields, num_option_bytes)
        if num_token_bytes > max(max_token_bytes, MAX_OPTION_BYTES):
            raise MessageRefused("token_ids has more ids than the model's context")


def _check_infer(message: bytes) -> None:
    """Check a request with tensors. All bytes count as options but the contents of tensors of type BYTES."""
    num_fields = num_option_bytes = 0

    def check(start: int, end: int, *path: int) -> None:
        nonlocal num_fields, num_option_bytes
        for field in _fields(message, start, end):
            num_fields += 1
            place = (*path, field.number)
            if field.is_bytes and place in ((INPUTS,), (INPUTS, CONTENTS)):
                check(field.value_start, field.end, *place)
            elif not field.is_bytes or place not in ((RAW_CONTENTS,), (INPUTS, CONTENTS, BYTES_CONTENTS)):
                num_option_bytes += field.end - field.start
            _check_counts(num_fields, num_option_bytes)

    check(0, len(message))


def _check_counts(num_fields: int, num_option_bytes: int) -> None:
    if num_fields > MAX_FIELDS:
        raise MessageRefused(f"the request has over {MAX_FIELDS} fields")
    if num_option_bytes > MAX_OPTION_BYTES:
        raise MessageRefused(f"the request's options have over {MAX_OPTION_BYTES} bytes")


def _fields(message: bytes, start: int, stop: int) -> Iterator[_Field]:
    """Yield the fields of the message in a range of bytes. Raises DecodeError."""
    while start < stop:
        tag, value_start = _varint(message, start)
        number, wire_type = tag >> 3, tag & 7
        end = value_start
        if wire_type in FIXED_SIZES:
            end += FIXED_SIZES[wire_type]
        elif wire_type in (VARINT, BYTES):
            value, value_start = _varint(message, value_start)
            end = value_start + (value if wire_type == BYTES else 0)
        else:
            raise DecodeError(f"wire type {wire_type}")
        yield _Field(number, wire_type == BYTES, start, value_start, end)
        start = end


def _varint(message: bytes, start: int) -> tuple[int, int]:
    """Return the varint at `start` and the position after it. Raises DecodeError."""
    value = 0
    for place, byte in enumerate(message[start : start + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, start + place + 1
    raise DecodeError("truncated message")
