"""Messages that would take long to parse are rejected unparsed; all others pass."""

import random
from contextlib import suppress
from unittest.mock import Mock

import pytest
from google.protobuf.message import DecodeError

from baton.protos.common_pb2 import SamplingParams
from baton.protos.open_inference_pb2 import InferTensorContents, ModelInferRequest
from baton.protos.router_pb2 import GenerateRequest, TokenIds
from baton.router.grpc import message_bounds
from baton.router.grpc.message_bounds import GENERATE, MAX_FIELDS, MAX_OPTION_BYTES, MAX_OTHER_BYTES, MessageBounds
from baton.rpc.malformed import MessageRefused

CONTEXT_LEN = 200_000
BOUNDS = MessageBounds(lambda: CONTEXT_LEN)
MANY = 4_000_000


def delimited(number: int, content: bytes) -> bytes:
    """Return a field of bytes in protobuf's encoding."""
    size, varint = len(content), bytearray()
    while size > 0x7F:
        varint.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([number << 3 | 2]) + varint + bytes([size]) + content


HEAVY = {
    "stop strings": delimited(GenerateRequest.STOP_FIELD_NUMBER, b"") * MANY,
    "biases": delimited(
        GenerateRequest.SAMPLING_FIELD_NUMBER, delimited(SamplingParams.LOGIT_BIAS_FIELD_NUMBER, b"") * MANY
    ),
    "texts": delimited(GenerateRequest.TEXT_FIELD_NUMBER, b"") * MANY,
    "token ids": delimited(GenerateRequest.TOKEN_IDS_FIELD_NUMBER, delimited(TokenIds.IDS_FIELD_NUMBER, bytes(MANY))),
    "unknown fields": b"\x78\x01" * MANY,
}


@pytest.mark.parametrize("name", HEAVY)
def test_a_heavy_message_is_refused_after_few_fields(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(wraps=message_bounds._varint)
    monkeypatch.setattr(message_bounds, "_varint", read)
    with pytest.raises(MessageRefused):
        BOUNDS.check(GENERATE, HEAVY[name])
    assert 0 < read.call_count <= 2 * (MAX_FIELDS + 1)


def test_requests_at_the_limits_pass() -> None:
    large_ids = range(1 << 31, (1 << 31) + 4096)
    sampling = SamplingParams(logit_bias=dict.fromkeys(large_ids, 1.5), stop_token_ids=large_ids)
    options = {"sampling": sampling, "stop": ["\U0001f389" * 1024] * 16, "cache_salt": "x" * 1024, "priority": -1}
    largest = GenerateRequest(token_ids=TokenIds(ids=[(1 << 32) - 1] * CONTEXT_LEN), **options)
    for request in (GenerateRequest(), GenerateRequest(text="x" * (16 << 20), timeout_s=1.5, **options), largest):
        BOUNDS.check(GENERATE, request.SerializeToString())


def test_parsable_messages_pass() -> None:
    rng = random.Random(2)
    whole = GenerateRequest(text="hello", stop=["a", "b"], timeout_s=2.5, sampling=SamplingParams(seed=1 << 60))
    message, num_taken = whole.SerializeToString(), 0
    for _ in range(5000):
        changed = bytearray(message[: rng.randrange(len(message) + 1)])
        for _ in range(rng.randrange(3)):
            if changed:
                changed[rng.randrange(len(changed))] = rng.randrange(256)
        if any(byte & 7 == 3 for byte in changed):
            continue  # may begin an unknown group, which the parser skips
        with suppress(DecodeError):
            GenerateRequest.FromString(bytes(changed))
            num_taken += 1
            try:
                BOUNDS.check(GENERATE, bytes(changed))
            except DecodeError:
                pytest.fail(f"{bytes(changed)!r} is refused")
    assert num_taken


def test_other_services_take_small_messages() -> None:
    BOUNDS.check("/grpc.health.v1.Health/Watch", bytes(MAX_OTHER_BYTES))
    assert MAX_OTHER_BYTES < MAX_OPTION_BYTES
    with pytest.raises(MessageRefused, match="over the limit of 65536"):
        BOUNDS.check("/grpc.health.v1.Health/Watch", bytes(MAX_OTHER_BYTES + 1))


HEAVY_INFERENCES = {
    "inputs": delimited(message_bounds.INPUTS, b"") * MANY,
    "names": delimited(message_bounds.INPUTS, delimited(1, b"") * MANY),
    "elements": delimited(message_bounds.INPUTS, delimited(message_bounds.CONTENTS, delimited(8, b"") * MANY)),
    "packed elements": delimited(message_bounds.INPUTS, delimited(message_bounds.CONTENTS, delimited(1, bytes(MANY)))),
    "raw contents": delimited(message_bounds.RAW_CONTENTS, b"") * MANY,
    "parameters": delimited(4, delimited(1, b"a") + delimited(2, b"")) * MANY,
    "unpacked contents": bytes([message_bounds.RAW_CONTENTS << 3, 1]) * MANY,
}


@pytest.mark.parametrize("name", HEAVY_INFERENCES)
@pytest.mark.parametrize("method", sorted(message_bounds.INFER))
def test_a_heavy_inference_is_refused_after_few_fields(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(wraps=message_bounds._varint)
    monkeypatch.setattr(message_bounds, "_varint", read)
    with pytest.raises(MessageRefused):
        BOUNDS.check(method, HEAVY_INFERENCES[name])
    assert 0 < read.call_count <= 2 * (MAX_FIELDS + 3)


def test_an_inference_with_a_long_text_passes() -> None:
    text = b"x" * (16 << 20)
    typed = ModelInferRequest.InferInputTensor(name="text_input", contents=InferTensorContents(bytes_contents=[text]))
    for request in (ModelInferRequest(inputs=[typed]), ModelInferRequest(raw_input_contents=[text])):
        for method in message_bounds.INFER:
            BOUNDS.check(method, request.SerializeToString())
