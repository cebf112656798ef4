"""A streamed function call has the same events if its decode worker is killed in the middle."""

import json
import os
import re
import signal
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from benchmarks.server import served
from tests.integration.received_call import BODY, NUM_SEEN, NUM_WORDS, TOOL
from tests.integration.workers_view import pid_of, wait_all_ready

FUNCTION: Any = {"type": "function", **TOOL["function"]}
REQUEST: dict[str, Any] = {
    **{name: BODY[name] for name in ("temperature", "seed", "top_k", "top_p", "repetition_penalty", "stream")},
    "input": BODY["messages"],
    "tools": [FUNCTION],
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_output_tokens": BODY["max_tokens"],
}
IDS = re.compile(r"\b(resp|fc|call)_[0-9a-f]{24,}")


class Events:
    """Events of a stream, without ids and times; adjacent deltas are joined, as their division is a matter of time."""

    def __init__(self) -> None:
        self.shown: list[dict[str, Any]] = []
        self.num_deltas = 0
        self.num_events = 0

    async def read(self, lines: AsyncIterator[str], num_deltas: int | None = None) -> None:
        """Read events until there are this many deltas. None: until the end."""
        while num_deltas is None or self.num_deltas < num_deltas:
            line = await anext(lines, None)
            if line is None:
                break
            if line.startswith("data: "):
                self._add(json.loads(IDS.sub(r"\1", line.removeprefix("data: "))))

    def _add(self, event: dict[str, Any]) -> None:
        assert event.pop("sequence_number") == self.num_events
        self.num_events += 1
        self.num_deltas += "delta" in event
        if response := event.get("response"):
            del response["created_at"]
            response.pop("completed_at", None)
            if response["usage"] is not None:
                del response["usage"]["input_tokens_details"]  # what was cached
        if "delta" in event and self.shown and self.shown[-1]["type"] == event["type"]:
            self.shown[-1]["delta"] += event["delta"]
        else:
            self.shown.append(event)


@pytest.mark.slow
async def test_a_function_call_over_a_kill() -> None:
    flags = ("--prefill", "1", "--decode", "2", "--dtype", "float32", "--num-threads", "1")
    async with (
        served("", *flags, "--tool-call-parser", "hermes") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client,
    ):
        results: list[Events] = []
        for is_killed in (False, True):
            await wait_all_ready(url)
            events = Events()
            async with client.stream("POST", "/v1/responses", json=REQUEST) as response:
                assert response.status_code == 200, await response.aread()
                lines = response.aiter_lines()
                await events.read(lines, NUM_SEEN)
                if is_killed:
                    os.kill(await pid_of(response.headers["x-baton-decode"], url), signal.SIGKILL)
                await events.read(lines)
            results.append(events)
        undisturbed, moved = results
        assert [event["type"].removeprefix("response.") for event in undisturbed.shown] == [
            "created", "in_progress", "output_item.added", "function_call_arguments.delta",
            "function_call_arguments.done", "output_item.done", "completed",
        ]  # fmt: skip
        [call] = undisturbed.shown[-1]["response"]["output"]
        assert len(json.loads(call["arguments"])["words"]) == NUM_WORDS
        assert undisturbed.num_deltas > 2 * NUM_SEEN
        assert moved.shown == undisturbed.shown
