"""A required tool call has the same tokens and the same parts however its request moves between workers."""

import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import orjson
import pytest

from baton.protos.worker_pb2 import DrainRequest, UndrainRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from benchmarks.server import served
from tests.integration.workers_view import pid_of, wait_all_ready, workers

NUM_WORDS = 20
WORDS = {
    "type": "array",
    "items": {"type": "string", "pattern": "^[a-z]{2,9}$"},
    "minItems": NUM_WORDS,
    "maxItems": NUM_WORDS,
}
PARAMETERS = {"type": "object", "properties": {"words": WORDS}, "required": ["words"]}
TOOL = {"type": "function", "function": {"name": "say", "parameters": PARAMETERS}}
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say some words. " * 30}], "tools": [TOOL], "tool_choice": "required",
    "parallel_tool_calls": False, "max_tokens": 900, "temperature": 1, "seed": 11, "top_k": -1, "top_p": 1,
    "repetition_penalty": 1, "stream": True, "return_token_ids": True,
}  # fmt: skip
HEADERS = {"x-request-id": "words"}  # the ids of calls are derived from it
NUM_SEEN = 60  # tokens in front of the move


class Received:
    """Tokens and parts of a stream."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.begins: list[Any] = []
        self.arguments = ""
        self.finish_reason: str | None = None

    async def read(self, lines: AsyncIterator[str], num_tokens: int | None = None) -> None:
        """Read events until there are this many tokens. None: until the end."""
        while num_tokens is None or len(self.token_ids) < num_tokens:
            line = await anext(lines, None)
            if line is None:
                break
            if line.startswith("data: {"):
                self._add(orjson.loads(line.removeprefix("data: ")))

    def _add(self, body: Any) -> None:
        assert "choices" in body, body
        [choice] = body["choices"]
        self.token_ids += choice.get("token_ids", [])
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        assert not choice["delta"].get("content")
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                self.begins.append(call)
            self.arguments += call["function"]["arguments"]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Received) and vars(self) == vars(other)


@pytest.mark.slow
async def test_a_required_call_over_a_handover_a_drain_and_a_kill() -> None:
    flags = ("--prefill", "1", "--decode", "2", "--dtype", "float32", "--num-threads", "1")
    async with (
        served("", *flags, "--tool-call-parser", "hermes") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, headers=HEADERS) as client,
    ):
        await wait_all_ready(url)
        results: dict[str, Received] = {}
        for case in ("handover", "local", "drained", "killed"):
            await wait_all_ready(url)
            received = results[case] = Received()
            salt = "handover" if case == "local" else case  # the second request with a salt finds its prompt cached
            body = {**BODY, "cache_salt": salt}
            async with client.stream("POST", "/v1/chat/completions", json=body) as response:
                assert response.status_code == 200, await response.aread()
                lines = response.aiter_lines()
                await received.read(lines, NUM_SEEN)
                leaving = response.headers["x-baton-decode"]
                assert (int(response.headers["x-baton-handed-over-tokens"]) > 0) == (case != "local")
                if case == "killed":
                    os.kill(await pid_of(leaving, url), signal.SIGKILL)
                elif case == "drained":
                    addresses = {worker["worker_id"]: worker["address"] for worker in await workers(url)}
                    async with grpc.aio.insecure_channel(addresses[leaving]) as channel:
                        await WorkerStub(channel).Drain(DrainRequest(timeout_s=0.05))
                        await received.read(lines)
                        await WorkerStub(channel).Undrain(UndrainRequest())
                await received.read(lines)
        first = results["handover"]
        assert first.finish_reason == "tool_calls"
        assert [call["function"]["name"] for call in first.begins] == ["say"]
        assert len(json.loads(first.arguments)["words"]) == NUM_WORDS
        assert len(first.token_ids) > 2 * NUM_SEEN
        for case, received in results.items():
            assert received == first, case
