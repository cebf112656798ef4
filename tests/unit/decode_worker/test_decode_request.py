"""What a command says about a request, at the decode worker and at the prefill worker that it asks."""

from baton.decode_worker.decode_request import DecodeRequest
from baton.decode_worker.service import RouterSession
from baton.engine.kv.origin import KVOrigin
from baton.engine.request import RequestId
from baton.protos import common_pb2, worker_pb2
from baton.rpc.requests import engine_request


def test_both_workers_know_whose_request_it_is() -> None:
    command = worker_pb2.GenerateCommand(
        request_id="a",
        token_ids=[5, 6, 7],
        num_prompt_tokens=2,
        sampling=common_pb2.SamplingParams(max_tokens=4),
        cache_salt="salt",
        priority=-3,
        tenant="digest",
        number=8,
        prefill=worker_pb2.PeerWorker(worker_id="prefill-1"),
    )
    request = DecodeRequest.of(command, RouterSession("1", "router-1"), "decode-1", 1, KVOrigin("bf16", "f"))
    message = request.prefill_request(command.prefill, "fingerprint", 2, 1)
    for each in (request.request, engine_request(message, RequestId("p"))):
        assert (each.token_ids, each.num_prompt_tokens) == ([5, 6, 7], 2)
        assert (each.cache_salt, each.tenant, each.priority) == ("salt", "digest", -3)
    assert (message.router_id, message.number, message.num_ranks, message.num_cached_tokens) == ("router-1", 8, 2, 1)
