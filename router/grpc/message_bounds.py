"""Limits of gRPC messages, checked before they are parsed.

The parser blocks the event loop for a whole message. Text takes milliseconds, but megabytes of tiny fields take
seconds, during which no other client is served.
"""

from collections.abc import Callable

from google.protobuf.message import DecodeError

from baton.protos.router_pb2 import DESCRIPTOR, GenerateRequest
from baton.rpc.malformed import MessageRefused

SERVICE_NAME = DESCRIPTOR.services_by_name["Inference"].full_name
GENERATE = f"/{SERVICE_NAME}/Generate"
TEXT = GenerateRequest.TEXT_FIELD_NUMBER
TOKEN_IDS = GenerateRequest.TOKEN_IDS_FIELD_NUMBER
TOKEN_ID_BYTES = 6  # maximum size of an unpacked token id; a packed one has at most five
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
        elif len(message) > MAX_OTHER_BYTES:
            raise MessageRefused(f"the request has {len(message)} bytes, over the limit of {MAX_OTHER_BYTES}")


def _check_generate(message: bytes, max_token_bytes: int) -> None:
    num_fields = num_token_bytes = num_option_bytes = 0
    start = 0
    while start < len(message):
        tag, end = _varint(message, start)
        number, wire_type = tag >> 3, tag & 7
        if wire_type in FIXED_SIZES:
            end += FIXED_SIZES[wire_type]
        elif wire_type in (VARINT, BYTES):
            value, end = _varint(message, end)
            end += value if wire_type == BYTES else 0
        else:
            raise DecodeError(f"wire type {wire_type}")
        num_fields += 1
        if number == TOKEN_IDS:
            num_token_bytes += end - start
        elif number != TEXT:
            num_option_bytes += end - start
        if num_fields > MAX_FIELDS:
            raise MessageRefused(f"the request has over {MAX_FIELDS} fields")
        if num_token_bytes > max(max_token_bytes, MAX_OPTION_BYTES):
            raise MessageRefused("token_ids has more ids than the model's context")
        if num_option_bytes > MAX_OPTION_BYTES:
            raise MessageRefused(f"the request's options have over {MAX_OPTION_BYTES} bytes")
        start = end


def _varint(message: bytes, start: int) -> tuple[int, int]:
    """Return the varint at `start` and the position after it. Raises DecodeError."""
    value = 0
    for place, byte in enumerate(message[start : start + 10]):
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, start + place + 1
    raise DecodeError("truncated message")
