"""The events of a streamed tool call are the same if its decode worker is killed in the middle."""

import os
import re
import signal
from typing import Any

import httpx
import orjson
import pytest

from benchmarks.server import served
from tests.integration.received_call import NUM_WORDS, PARAMETERS
from tests.integration.workers_view import pid_of, wait_all_ready

BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Say some words. " * 30}], "max_tokens": 900, "stream": True,
    "tools": [{"name": "say", "input_schema": PARAMETERS}], "temperature": 1, "seed": 11, "top_k": -1, "top_p": 1,
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "repetition_penalty": 1,
}  # fmt: skip
HEADERS = {"x-request-id": "words"}  # the ids of calls are derived from it
NUM_SEEN = 40  # events in front of the kill


@pytest.mark.slow
async def test_a_call_over_a_kill() -> None:
    flags = ("--prefill", "1", "--decode", "2", "--dtype", "float32", "--num-threads", "1")
    async with (
        served("", *flags, "--tool-call-parser", "hermes") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, headers=HEADERS) as client,
    ):
        received: dict[str, list[Any]] = {}
        for case in ("undisturbed", "killed"):
            await wait_all_ready(url)
            events = received[case] = []
            body = {**BODY, "cache_salt": case}
            async with client.stream("POST", "/v1/messages", json=body) as response:
                assert response.status_code == 200, await response.aread()
                leaving = response.headers["x-baton-decode"]
                async for line in response.aiter_lines():
                    if line.startswith("data: "):
                        events.append(orjson.loads(line.removeprefix("data: ")))
                        if case == "killed" and len(events) == NUM_SEEN:
                            os.kill(await pid_of(leaving, url), signal.SIGKILL)
        metrics = (await client.get("/metrics")).text
        [num_failovers] = re.findall(r"^baton:failovers_total\{.*\} (\S+)$", metrics, re.MULTILINE)
        assert float(num_failovers) == 1
        first, second = received["undisturbed"], received["killed"]
        assert outline(second) == outline(first)
        assert second[-2:] == first[-2:]
        assert first[-2]["delta"]["stop_reason"] == "tool_use"
        call = second[2]["content_block"]
        assert (call["type"], call["name"]) == ("tool_use", "say")
        assert len(second) > 2 * NUM_SEEN
        assert len(orjson.loads(arguments(second))["words"]) == NUM_WORDS


def outline(events: list[Any]) -> list[Any]:
    """Return the events without the division of the input, which depends on the time, as one event."""
    others = [event for event in events if event["type"] != "content_block_delta"]
    return [*others, arguments(events)]


def arguments(events: list[Any]) -> str:
    return "".join(event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta")
