"""The workers' gRPC services with arbitrary messages in any order, and with bytes that are not messages."""

import pytest
from hypothesis import strategies as st

from baton.protos.common_pb2 import SamplingParams
from baton.protos.worker_pb2 import (
    DESCRIPTOR,
    AbortCommand,
    DescribeRequest,
    EmbedRequest,
    GenerateCommand,
    Hello,
    LeaseRequest,
    PeerWorker,
    PrefillRequest,
    RouterMessage,
    UndrainRequest,
    WatchRequest,
)
from tests.architectures import VOCAB_SIZE
from tests.fuzz.fuzzing import Fuzzing
from tests.fuzz.grpc.grpc_calls import call
from tests.fuzz.grpc.messages import Overrides, messages, wire
from tests.fuzz.worker_rig import WorkerRig

METHODS = {
    method.name: f"/{service.full_name}/{method.name}"
    for service in DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
LEAVE_S = 0.03
ids = st.sampled_from(["a", "b", "c", "", "x" * 5000])
tokens = st.lists(st.one_of(st.integers(3, VOCAB_SIZE - 1), st.integers(3, 9), st.integers(0, 400)), max_size=60)
sampling = messages(
    SamplingParams,
    {
        "max_tokens": st.integers(0, 40),
        "min_tokens": st.integers(0, 3),
        "temperature": st.sampled_from([0.0, 0.7, 100.0, float("nan")]),
        "top_p": st.sampled_from([1.0, 0.5, 1e-45]),
        "min_p": st.sampled_from([0.0, 0.2, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1e-45, 100.0]),
        "logprobs": st.integers(0, 25),
        "prompt_logprobs": st.integers(0, 25),
        "presence_penalty": st.sampled_from([0.0, 2.0, -2.0]),
        "frequency_penalty": st.sampled_from([0.0, 2.0, -2.0]),
        "stop_token_ids": st.lists(st.integers(0, VOCAB_SIZE), max_size=3),
    },
)


def likely(workers: WorkerRig) -> Overrides:
    """Return values that get a message past the first checks."""
    names = [description.incarnation for description in workers.descriptions]
    fingerprint = workers.descriptions[0].fingerprint
    addresses = [workers.prefill.address, workers.decode.address, "127.0.0.1:1", "", "unix:/nowhere", "ipv4:a", "\0"]
    peer = messages(PeerWorker, {"address": st.sampled_from(addresses), "incarnation": st.sampled_from([*names, "x"])})
    real = st.just(PeerWorker(worker_id="p", address=workers.prefill.address, incarnation=names[0]))
    return {
        "request_id": ids,
        "token_ids": tokens,
        "num_prompt_tokens": st.integers(0, 60),
        "sampling": sampling,
        "incarnation": st.sampled_from([*names, *names, *names, "", "x" * 20_000]),
        "fingerprint": st.sampled_from([fingerprint, fingerprint, fingerprint, "", "x" * 20_000]),
        "prefill": st.one_of(real, real, peer),
        "prefix_source": peer,
        "num_cached_tokens": st.integers(0, 100),
        "cache_salt": st.sampled_from(["", "a", "x" * 100_000]),
        "block_hashes": st.one_of(st.binary(max_size=80), st.just(bytes(60_000))),
        "interval_ms": st.sampled_from([0, 1, 10, (1 << 32) - 1]),
    }


def test_attach_refuses_invalid_messages(fuzzing: Fuzzing, workers: WorkerRig) -> None:
    values = likely(workers)
    hello = RouterMessage(hello=Hello(router_id="r", incarnation=workers.descriptions[1].incarnation))
    commands = messages(GenerateCommand, values)
    router_messages = st.one_of(
        st.builds(
            lambda generate, abort: RouterMessage(generate=generate, abort=abort),
            st.lists(commands, max_size=3),
            st.lists(ids.map(lambda name: AbortCommand(request_id=name)), max_size=2),
        ),
        messages(RouterMessage, values),
    )
    encoded = st.one_of(router_messages.map(lambda each: each.SerializeToString()), wire(RouterMessage, values))
    streams = st.one_of(
        st.lists(router_messages, max_size=4).map(lambda each: [hello, *each]).map(
            lambda each: [message.SerializeToString() for message in each]
        ),
        st.lists(encoded, max_size=4).map(lambda each: [hello.SerializeToString(), *each]),
        st.lists(encoded, max_size=3),
    )  # fmt: skip

    def check(given: tuple[list[bytes], float]) -> None:
        stream, linger_s = given
        workers.run(call(workers.decode.channel, METHODS["Attach"], stream, linger_s=linger_s)).check()

    fuzzing.run(st.tuples(streams, st.sampled_from([0.0, LEAVE_S, 0.1])), check, 50)
    workers.check_serves()


@pytest.mark.parametrize("name", ["Prefill", "Embed", "Lease", "Watch", "Describe", "Undrain"])
def test_other_methods_refuse_invalid_messages(fuzzing: Fuzzing, workers: WorkerRig, name: str) -> None:
    kinds = {
        "Prefill": PrefillRequest,
        "Embed": EmbedRequest,
        "Lease": LeaseRequest,
        "Watch": WatchRequest,
        "Describe": DescribeRequest,
        "Undrain": UndrainRequest,
    }
    values, kind = likely(workers), kinds[name]
    whole = messages(kind, values).map(lambda each: each.SerializeToString())
    requests = st.one_of(whole, whole, wire(kind, values)).map(lambda each: [each])
    several = st.lists(whole, max_size=3)

    def check(given: tuple[list[bytes], float]) -> None:
        stream, leave_s = given
        for worker in (workers.prefill, workers.decode):
            outcome = workers.run(call(worker.channel, METHODS[name], stream, leave_s=leave_s))
            outcome.check()

    fuzzing.run(st.tuples(st.one_of(requests, several), st.sampled_from([0.0, LEAVE_S])), check, 40)
    workers.check_serves()
