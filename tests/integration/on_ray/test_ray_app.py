"""An application on a real Ray: its responses, and their independence of crashes and resizes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import openai
import pytest
import pytest_asyncio

from baton.router.admission.unread_output import STALL_S
from tests.integration.completion_load import completion_load
from tests.integration.moves.test_stopped_worker import BODY, tokens_of
from tests.integration.on_ray.ray_application import DEADLINE_S, NAME, RayApplication, application_of_its_own
from tests.integration.on_ray.ray_cluster import left_of
from tests.integration.workers_view import wait_idle, workers

pytestmark = pytest.mark.slow

# Completions, and tokens of each: nearly the maximum of the model, so that the request takes long.
NUM_COMPLETIONS, NUM_LONG = 8, 3900
LONG_PROMPT = "Return the names of all files in a directory, and of those below it. " * 12


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RayApplication]:
    """Run one application for all tests here."""
    async with application_of_its_own(tmp_path_factory.mktemp("ray")) as application:
        yield application


async def answers(url: str) -> list[str]:
    """Return the responses that the `openai` client receives: one greedy, one sampled and one streamed."""
    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=60, max_retries=0)
    greedy = await client.completions.create(model=NAME, prompt=LONG_PROMPT, max_tokens=40, temperature=0)
    sampled = await client.completions.create(model=NAME, prompt=LONG_PROMPT, max_tokens=40, temperature=0.9, seed=7)
    stream = await client.chat.completions.create(
        model=NAME, messages=[{"role": "user", "content": LONG_PROMPT}], max_tokens=40, temperature=0, stream=True
    )
    streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    await client.close()
    return [greedy.choices[0].text, sampled.choices[0].text, streamed]


async def test_responses_equal_those_of_a_cluster_without_ray(app: RayApplication, cluster_url: str) -> None:
    expected = await answers(cluster_url)
    assert all(expected)
    assert await answers(app.router_url) == expected
    assert await answers(app.serve_url) == expected


async def test_a_prompt_is_handed_over_between_replicas(app: RayApplication) -> None:
    async with httpx.AsyncClient(base_url=app.serve_url, timeout=60, trust_env=False, verify=False) as client:
        body = {"model": NAME, "prompt": f"Something new. {LONG_PROMPT}", "max_tokens": 4, "temperature": 0}
        answer = await client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-baton-prefill"].startswith("prefill-")
        assert answer.headers["x-baton-decode"].startswith("decode-")
        assert int(answer.headers["x-baton-handed-over-tokens"]) > 100
        names = [name.lower() for name, _ in answer.headers.raw]
        assert (names.count(b"date"), names.count(b"x-request-id")) == (1, 1)
        missing = await client.get("/nothing/here")
        assert missing.status_code == 404
        wrong = await client.post("/v1/completions?x=1", json={"model": "gpt-5", "prompt": "x"})
        assert "gpt-5" in wrong.json()["error"]["message"]


@asynccontextmanager
async def ended_by_its_client(app: RayApplication) -> AsyncIterator[dict[str, object]]:
    """Yield the body of a long request, and check that it ends early after its client has disconnected.

    The router also drops clients that do not read, but only after this check.
    """
    before = await num_generated(app)
    yield {**BODY, "max_tokens": NUM_LONG, "n": NUM_COMPLETIONS}
    async with asyncio.timeout(STALL_S - 1):
        await wait_idle(app.router_url)
    assert await num_generated(app) - before < NUM_COMPLETIONS * NUM_LONG / 2


async def wait_running(app: RayApplication) -> None:
    """Wait until a worker reports a running request."""
    async with asyncio.timeout(DEADLINE_S):
        while not any(int(each["load"]["num_running"]) for each in await workers(app.router_url)):
            await asyncio.sleep(0.02)


async def num_generated(app: RayApplication) -> int:
    """Return the output tokens of all workers since their start."""
    return sum(int(each["load"]["num_generated_tokens"]) for each in await workers(app.router_url))


async def test_ray_serves_http_server_streams_and_cancels_with_the_client(app: RayApplication) -> None:
    async with (
        ended_by_its_client(app) as body,
        httpx.AsyncClient(base_url=app.serve_url, timeout=60, trust_env=False, verify=False) as client,
        client.stream("POST", "/v1/completions", json=body) as response,
    ):
        assert response.status_code == httpx.codes.OK, await response.aread()
        tokens = tokens_of(response)  # kept referenced, or the connection would be closed
        await anext(tokens)
        await wait_running(app)
        for _ in range(NUM_COMPLETIONS):
            await anext(tokens)


async def test_a_client_that_stops_reading_cancels_the_request(app: RayApplication) -> None:
    async with (
        ended_by_its_client(app) as body,
        httpx.AsyncClient(base_url=app.serve_url, timeout=60, trust_env=False, verify=False) as client,
    ):
        asking = asyncio.create_task(client.post("/v1/completions", json={**body, "stream": False}))
        await wait_running(app)
        assert asking.cancel()
        await asyncio.wait([asking])


async def test_requests_survive_a_killed_worker_and_replica(app: RayApplication) -> None:
    async with (
        httpx.AsyncClient(base_url=app.router_url, timeout=60, trust_env=False, verify=False) as direct,
        httpx.AsyncClient(base_url=app.serve_url, timeout=60, trust_env=False, verify=False) as through_serve,
        completion_load(direct, through_serve, direct) as load,
    ):
        before = await app.wait_workers("decode", 2)
        await load.more(2)
        first, second = sorted(before)
        worker = app.ray.worker(first)
        os.kill(worker.pid, signal.SIGKILL)
        await load.more(2)
        await app.wait_workers("decode", 2, frozenset({first}))

        worker = app.ray.worker(second)
        replica = worker.parent()
        assert replica is not None
        os.kill(replica.pid, signal.SIGKILL)
        assert await asyncio.to_thread(left_of, [worker], 20.0) == []  # it notices through the replica's lifeline pipe
        await load.more(2)
        await app.wait_workers("decode", 2, before)
        await load.more(2)


async def test_requests_survive_a_shrinking_pool(app: RayApplication) -> None:
    async with (
        httpx.AsyncClient(base_url=app.router_url, timeout=60, trust_env=False, verify=False) as client,
        completion_load(client, client, client) as load,
    ):
        before = await app.wait_workers("decode", 2)
        processes = {each: app.ray.worker(each) for each in before}
        await load.more(1)
        await app.resize(1)
        after = await app.wait_workers("decode", 1)
        assert after < before  # the other worker was not restarted
        await load.more(2)
        [gone] = before - after
        assert await asyncio.to_thread(left_of, [processes[gone]], 20.0) == []
