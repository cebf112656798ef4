"""Processes that only forward requests have the interface of routers."""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.http_load import post
from benchmarks.routing.client import Client
from benchmarks.routing.passing.systems import baton_pass_through, http_pass_through
from benchmarks.routing.run import ready_system
from benchmarks.routing.system import Setting, System, chat_body, make_model
from benchmarks.routing.topology import INSTANT, Topology

BUNDLED = Path(__file__).parents[3] / "baton" / "bundled_model"
SMALL = Topology(INSTANT.name, INSTANT.roles, replace(INSTANT.spec, num_blocks=1024))
MESSAGES = [{"role": "user", "content": "What does nothing cost? " * 20}]


@pytest.mark.parametrize("system", [baton_pass_through("gRPC"), http_pass_through("HTTP")], ids=lambda each: each.name)
async def test_chats_reach_the_workers(system: System, tmp_path: Path) -> None:
    setting = Setting(Path(sys.executable), make_model(BUNDLED, tmp_path))
    chat, client = system.chats(setting), Client()
    async with ready_system(system, setting, SMALL) as served:
        before = await served.workers.counts()
        payloads = [chat(MESSAGES, 5, stream) for stream in (False, True) for _ in range(4)]
        answers = await asyncio.gather(*(client.ask(served.routers[0].port, each) for each in payloads))
        assert all(0 < answer.ttft_s <= answer.total_s for answer in answers)
        counts = [now.since(then) for now, then in zip(await served.workers.counts(), before, strict=True)]
        assert [each.requests for each in counts] == [4, 4]
        client.close()


def test_a_forwarded_request_is_as_long_as_its_chat(tmp_path: Path) -> None:
    setting = Setting(Path(sys.executable), make_model(BUNDLED, tmp_path))
    passed = baton_pass_through("gRPC").chats(setting)(MESSAGES, 5, False)
    assert len(passed) == len(post("/v1/chat/completions", chat_body(MESSAGES, 5, False)))
