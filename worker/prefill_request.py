"""A prompt that another worker asks for, as the engine takes it."""

from dataclasses import replace

from baton.engine.request import Request, RequestId
from baton.protos.worker_pb2 import PrefillRequest
from baton.rpc.sampling import sampling_from_proto


def engine_request(message: PrefillRequest, request_id: RequestId) -> Request:
    """The message's tokens, and one more."""
    sampling = sampling_from_proto(message.sampling)
    num_tokens = len(message.token_ids) - message.num_prompt_tokens + 1
    return Request(
        request_id=request_id,
        token_ids=list(message.token_ids),
        num_prompt_tokens=message.num_prompt_tokens,
        sampling=replace(sampling, max_tokens=num_tokens, min_tokens=min(sampling.min_tokens, num_tokens)),
        cache_salt=message.cache_salt,
        priority=message.priority,
        # The logprobs of a prompt come with its computation: nothing of it may be pulled then.
        receives_kv=message.HasField("prefix_source") and sampling.prompt_logprobs is None,
        keep_blocks=True,
    )
