"""Baseline systems whose router is a pass-through: the remaining cost is that of client, workers and network hops.

Messages to the workers are prepared by the client: they contain the prompt's tokens, and are as long as the chat.
"""

from collections.abc import Callable
from itertools import count

import orjson

from baton.engine.sampling.params import SamplingParams
from baton.protos.worker_pb2 import GenerateCommand, RouterMessage
from baton.router.text.chat_template import ChatTemplate
from baton.router.text.tokenizer_files import read_tokenizer
from baton.rpc.requests import sampling_to_proto
from benchmarks.http_load import post
from benchmarks.routing.passing.server import ID_BYTES, STREAMED, WHOLE
from benchmarks.routing.system import (
    Body,
    Chat,
    Command,
    Messages,
    Setting,
    System,
    chat_body,
    generate_body,
    openai_chats,
)
from benchmarks.routing.topology import Topology

PADDING = "x-padding: "


class PassedBodies:
    """Builder of messages to the workers; in-flight requests have distinct ids."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def command(self, token_ids: list[int], num_output_tokens: int) -> bytes:
        """Return a command for Baton's workers."""
        request_id = self._request_id()
        sampling = SamplingParams(temperature=0.0, max_tokens=num_output_tokens, seed=1)
        command = GenerateCommand(
            request_id=request_id,
            token_ids=token_ids,
            num_prompt_tokens=len(token_ids),
            sampling=sampling_to_proto(sampling),
        )
        return request_id.encode() + RouterMessage(generate=[command]).SerializeToString()

    def dynamo(self, token_ids: list[int], num_output_tokens: int) -> bytes:
        """Return a request for Dynamo's workers, with the fields that the simulated ones read."""
        message = {"token_ids": token_ids, "stop_conditions": {"max_tokens": num_output_tokens}}
        return self._request_id().encode() + orjson.dumps(message)

    def _request_id(self) -> str:
        return f"{next(self._numbers):0{ID_BYTES}}"


def passed_chats(body: Body) -> Callable[[Setting], Chat]:
    """Return tokenised chats in requests as long as those for routers."""

    def chats(setting: Setting) -> Chat:
        pretrained = read_tokenizer(str(setting.model))
        template = ChatTemplate(pretrained)

        def chat(messages: Messages, num_output_tokens: int, stream: bool) -> bytes:
            text = template.render(messages, True, False, {})
            token_ids = pretrained.backend_tokenizer.encode(text, add_special_tokens=False).ids
            num_bytes = len(post("/v1/chat/completions", chat_body(messages, num_output_tokens, stream)))
            return _padded(STREAMED if stream else WHOLE, body(token_ids, num_output_tokens), num_bytes)

        return chat

    return chats


def _padded(path: str, body: bytes, num_bytes: int) -> bytes:
    """Return a request of at least `num_bytes`, padded by a meaningless header."""
    request = post(path, body, PADDING)
    return post(path, body, PADDING + "x" * max(0, num_bytes - len(request)))


def baton_pass_through(name: str) -> System:
    """Return a system that forwards commands to Baton's workers over the router's stream protocol."""
    body = PassedBodies().command
    return System(name, False, "baton", WHOLE, body, _passing("grpc_stream"), chats=passed_chats(body), floor=name)


def http_pass_through(name: str) -> System:
    """Return a system that forwards each connection's bytes to a worker."""
    return System(name, False, "sglang", "/generate", generate_body, _passing("tcp"), chats=openai_chats, floor=name)


def dynamo_pass_through(name: str) -> System:
    """Return a system that calls Dynamo's workers through the runtime's own client."""
    body = PassedBodies().dynamo
    return System(name, True, "dynamo", WHOLE, body, _passing("dynamo"), True, True, passed_chats(body), name)


def _passing(module: str) -> Callable[[Setting, Topology, list[str], int], Command]:
    def router(setting: Setting, topology: Topology, addresses: list[str], port: int) -> Command:
        return Command([f"benchmarks.routing.passing.{module}", str(port), ",".join(addresses)], {})

    return router
