"""Simulated workers behind a peer's HTTP protocol, and the benchmark's client."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import orjson
import pytest

from baton.simulation.engine.engine import SimulatedEngine
from benchmarks.http_load import post
from benchmarks.routing.client import Client, Refused
from benchmarks.routing.system import chat_body, generate_body
from benchmarks.routing.topology import INSTANT_SPEC, Role
from benchmarks.routing.workers.rendezvous import Rendezvous
from benchmarks.routing.workers.sglang import SglangWorker

SPEC = replace(INSTANT_SPEC, num_blocks=1024)
PROMPT = list(range(400, 464))


@asynccontextmanager
async def served(*roles: Role) -> AsyncIterator[tuple[Client, list[SglangWorker], list[int]]]:
    """Serve workers on these ports; yield a client."""
    rendezvous, client = Rendezvous(), Client()
    workers = [SglangWorker(role, SimulatedEngine(SPEC), rendezvous, "model") for role in roles]
    ports = [int((await worker.start()).rpartition(":")[2]) for worker in workers]
    yield client, workers, ports
    client.close()
    for worker in workers:
        await worker.stop()


async def test_prompts_get_responses_and_are_cached() -> None:
    async with served("both") as (client, (worker,), (port,)):
        for _ in range(2):
            answer = await client.ask(port, post("/generate", generate_body(PROMPT, 3)))
            assert 0 < answer.ttft_s <= answer.total_s
        chat = chat_body([{"role": "user", "content": "hi"}], 2, stream=False)
        await client.ask(port, post("/v1/chat/completions", chat))
        assert worker.engine.counters.generated_tokens == 3 + 3 + 2
        assert worker.engine.load().num_cached_tokens == 48  # whole blocks of the second prompt, but not its last token


async def test_a_bootstrap_room_joins_prefill_at_one_worker_and_decode_at_the_other() -> None:
    async with served("prefill", "decode") as (client, (prefill, decode), ports):
        payload = post("/generate", orjson.dumps({**orjson.loads(generate_body(PROMPT, 4)), "bootstrap_room": 7}))
        await asyncio.gather(*(client.ask(port, payload) for port in ports))
        assert (prefill.engine.counters.prefilled_tokens, decode.engine.counters.prefilled_tokens) == (64, 0)
        assert decode.engine.counters.generated_tokens == 3  # the first token came with the prompt
        assert decode.engine.counters.received_tokens == 64


async def test_an_unknown_path_is_refused_and_a_malformed_request_ends_its_connection() -> None:
    async with served("both") as (client, _, (port,)):
        with pytest.raises(Refused, match="404"):
            await client.ask(port, b"GET /nowhere HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with pytest.raises(ConnectionError):
            await client.ask(port, post("/generate", b'{"text": "not a number"}'))
