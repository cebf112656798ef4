"""What a command says about a request, at the decode worker and at the prefill worker that it asks."""

from baton.decode_worker.decode_request import DecodeRequest
from baton.decode_worker.service import RouterSession
from baton.decode_worker.shared_images import SharedImages
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
    session, origin = RouterSession("1", "router-1"), KVOrigin("bf16", "f")
    request = DecodeRequest.of(command, session, "decode-1", 1, origin, SharedImages())
    message = request.prefill_request(command.prefill, "fingerprint", 2, 1)
    for each in (request.request, engine_request(message, RequestId("p"))):
        assert (each.token_ids, each.num_prompt_tokens) == ([5, 6, 7], 2)
        assert (each.cache_salt, each.tenant, each.priority) == ("salt", "digest", -3)
    assert (message.router_id, message.number, message.num_ranks, message.num_cached_tokens) == ("router-1", 8, 2, 1)


def test_a_token_that_another_model_sampled_is_named_to_the_end() -> None:
    command = worker_pb2.GenerateCommand(request_id="a", token_ids=[5, 6, 7], num_prompt_tokens=3)
    session = RouterSession("1", "router-1")
    entry = DecodeRequest.of(command, session, "decode-1", 1, KVOrigin("bf16", "f"), SharedImages())
    entry.note_origins(frozenset({KVOrigin("gptq", "g")}))
    entry.say_first_token(worker_pb2.FirstToken(token_id=8), None)
    entry.note_origins()  # the handover failed afterwards, and this worker computed the KV
    assert entry.served_by.mixed_quantization == "gptq->bf16"


def test_completions_share_the_pixels_of_an_image_and_hold_no_message_with_them() -> None:
    shared, session, origin = SharedImages(), RouterSession("1", "router-1"), KVOrigin("bf16", "f")
    entries = []
    for name, pixels in (("a", b"x" * 9), ("b", b"x" * 9), ("c", b"y" * 9)):
        image = common_pb2.Image(start=1, rows=1, columns=1, digest=b"d", pixels=pixels)
        whole = worker_pb2.RouterMessage(generate=[worker_pb2.GenerateCommand(request_id=name, images=[image])])
        [command] = whole.generate
        entry = DecodeRequest.of(command, session, "decode-1", 1, origin, shared)
        assert entry.command is not command  # which keeps the whole message in memory
        assert entry.command == worker_pb2.GenerateCommand(request_id=name)
        assert [each.pixels for each in entry.prefill_request(worker_pb2.PeerWorker(), "f", 1, 0).images] == [pixels]
        entries.append(entry)
    first, second, other = (entry.request.images[0] for entry in entries)
    assert first is second
    assert other is not first
