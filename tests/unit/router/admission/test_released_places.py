"""Each place of a request is released exactly once, however the request and its client end."""

import asyncio
import random

import orjson
import pytest

from baton.router.admission.admission import Admission
from tests.unit.router.admission.test_unread import quick_worker
from tests.unit.router.rigs.running_router import DEADLINE_S, RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

NUM_CLIENTS = 40
MAX_INFLIGHT = 12
ENDS = ("read", "close", "leave", "timeout")  # of a client


async def client(router: RunningRouter, draw: random.Random, never: asyncio.Event) -> None:
    """Send a request of random size, and read it, close the connection early, or leave it unread."""
    body = {"prompt": "hello", "n": draw.choice([1, 1, 3]), "max_tokens": draw.choice([1, 5, 30])}
    content = orjson.dumps({**body, "stream": draw.random() < 0.6, "logprobs": draw.choice([None, 5])})
    host, _, port = router.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 12)
    end, query = draw.choice(ENDS), draw.choice(["", "?x"])
    head = [f"POST /v1/completions{query} HTTP/1.1", "host: x", "authorization: Bearer secret", "connection: close"]
    head += ["content-type: application/json", f"content-length: {len(content)}"]
    if end == "timeout":
        head.append("x-baton-timeout: 0.05")
    writer.write("\r\n".join([*head, "", ""]).encode() + content)
    try:
        if end == "close":
            await asyncio.sleep(draw.random() / 10)
        elif end == "leave":
            await never.wait()
        else:
            await reader.read(-1)
    finally:
        writer.transport.abort()


@pytest.mark.parametrize("seed", range(3))
async def test_all_places_come_back(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, num_left = random.Random(seed), 0
    leave = Admission.leave

    def counted(admission: Admission, num_completions: int, *options: float) -> None:
        nonlocal num_left
        leave(admission, num_completions, *options)
        assert admission.num_inflight >= 0
        num_left += num_completions

    monkeypatch.setattr(Admission, "leave", counted)
    workers = quick_worker(), ScriptedWorker("decode-1")
    never = asyncio.Event()
    async with running_router(*workers, api_key=("secret",), max_inflight=MAX_INFLIGHT) as router:
        clients = [asyncio.create_task(client(router, draw, never)) for _ in range(NUM_CLIENTS)]
        await until(lambda: sum(len(worker.commands) for worker in workers) > NUM_CLIENTS // 3)
        await workers[1].stop()  # its requests go on at the other
        headers = {"authorization": "Bearer secret"}
        wide = {"prompt": "hello", "n": MAX_INFLIGHT, "max_tokens": 1}  # is admitted once all places are free
        assert (await router.http.post("/v1/completions", headers=headers, json=wide)).status_code == 200
        async with asyncio.timeout(DEADLINE_S):
            while (await router.http.get("/workers", headers=headers)).json()["router"]["inflight"]:
                await asyncio.sleep(0.01)
        never.set()
        await asyncio.gather(*clients)
    assert num_left >= MAX_INFLIGHT
