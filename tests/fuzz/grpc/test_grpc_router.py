"""The router's gRPC service with arbitrary messages, and with bytes that are not messages."""

from collections.abc import Iterator

import grpc
import pytest
from hypothesis import strategies as st

from baton.protos.common_pb2 import SamplingParams
from baton.protos.router_pb2 import DESCRIPTOR, GenerateRequest, GenerateResponse, RoutingHints, TokenIds
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.grpc_calls import call
from tests.fuzz.grpc.messages import messages, wire
from tests.fuzz.grpc.mutations import damaged_bytes
from tests.fuzz.router_rig import MAX_MODEL_LEN, MODEL_NAME, RouterRig

GENERATE = f"/{DESCRIPTOR.services_by_name['Inference'].full_name}/Generate"
LIKELY = {
    "model": st.sampled_from([MODEL_NAME, "", "another", "x" * 50_000]),
    "text": st.sampled_from(["hi", "", "\0", "\U0001f389" * 40, "a " * MAX_MODEL_LEN, "x" * 1_000_000]),
    "ids": st.lists(st.one_of(st.integers(0, 4095), st.integers(0, 1 << 31)), max_size=MAX_MODEL_LEN + 5),
    "n": st.integers(0, 3),
    "max_tokens": st.integers(0, 300),
    "temperature": st.sampled_from([0.0, 0.7, float("nan"), 101.0]),
    "repetition_penalty": st.sampled_from([1.0, 1e-45, 100.0]),
    "top_p": st.sampled_from([1.0, 1e-45, 0.5]),
    "timeout_s": st.sampled_from([0.0, 30.0, -1.0, float("nan"), float("inf"), 3e38]),
    "hints": messages(RoutingHints, {"plan": st.sampled_from(["local", "remote", "", "x" * 9000])}),
    "cache_salt": st.sampled_from(["", "salt", "x" * 1025]),
    "stop": st.lists(st.sampled_from(["a", "zz", "", "y" * 2000]), max_size=3),
}


@pytest.fixture
def channel(served: RouterRig) -> Iterator[grpc.aio.Channel]:
    address = served.router.grpc_address
    assert address is not None

    async def connect() -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(address)

    channel = served.run(connect())
    yield channel
    served.run(channel.close())


def test_generate_refuses_invalid_messages(fuzzing: Fuzzing, served: RouterRig, channel: grpc.aio.Channel) -> None:
    def check(encoded: bytes) -> None:
        outcome = served.run(call(channel, GENERATE, [encoded]))
        outcome.check()
        for answer in outcome.answers:
            GenerateResponse.FromString(answer)

    rightish = GenerateRequest(
        request_id="r", token_ids=TokenIds(ids=[5, 6]), sampling=SamplingParams(max_tokens=2, logit_bias={5: 1.0})
    )
    kinds = [
        (messages(GenerateRequest, LIKELY).map(lambda each: each.SerializeToString()), check),
        (messages(GenerateRequest).map(lambda each: each.SerializeToString()), check),
        (wire(GenerateRequest, LIKELY), check),
        (damaged_bytes(rightish.SerializeToString()), check),
    ]
    fuzzing.run_all(kinds, 35)
    served.check_serves()


def test_several_messages_to_a_unary_method_are_refused(served: RouterRig, channel: grpc.aio.Channel) -> None:
    request = GenerateRequest(text="hi", sampling=SamplingParams(max_tokens=2)).SerializeToString()
    for count in (2, 5):
        served.run(call(channel, GENERATE, [request] * count)).check()
    served.check_serves()
