"""Workers that change their role under load: no request is lost, and no token differs."""

import asyncio
import re
from typing import Any

import httpx
import pytest

from benchmarks.server import served
from tests.integration.moves.drain_command import run
from tests.integration.moves.test_stopped_worker import tokens_of
from tests.integration.workers_view import pid_of, wait_all_ready, wait_idle, workers

FLAGS = ("--prefill", "2", "--decode", "2", "--dtype", "float32")
NUM_PROMPT = 60
NUM_STREAMS = 6
DRAIN_S = "0.3"  # then requests migrate


def body(number: int, num_tokens: int) -> dict[str, Any]:
    """Return the request of one stream; each has another prompt."""
    return {
        "prompt": [300 + (7 * number + place) % 500 for place in range(NUM_PROMPT)],
        "max_tokens": num_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }


async def stream(client: httpx.AsyncClient, number: int, num_tokens: int, salt: str) -> list[int]:
    """Return the tokens of a stream that shares no cache with those of another salt."""
    async with client.stream(
        "POST", "/v1/completions", json={**body(number, num_tokens), "cache_salt": salt}
    ) as response:
        assert response.status_code == 200, await response.aread()
        return [token async for token in tokens_of(response)]


async def change(url: str, worker: str, role: str, *options: str) -> None:
    """Change a worker's role; wait until the router has it in service."""
    output = await run("role", worker, role, "--url", url, *options)
    assert output == f"{worker} has the role {role}\n"
    async with asyncio.timeout(20):
        while (await states(url)).get(worker) != (role, "ready"):
            await asyncio.sleep(0.02)


async def states(url: str) -> dict[str, tuple[str, str]]:
    """Return the role and state of each worker."""
    return {each["worker_id"]: (each["role"], each["state"]) for each in await workers(url)}


async def counter(client: httpx.AsyncClient, name: str) -> float:
    """Return a counter of the router, summed over its labels."""
    found = re.findall(rf"^baton:{name}_total{{[^}}]*}} (\S+)$", (await client.get("/metrics")).text, re.MULTILINE)
    return sum(map(float, found))


@pytest.mark.slow
async def test_a_decode_worker_becomes_a_prefill_worker_and_its_stream_goes_on() -> None:
    async with (
        served("", "--prefill", "1", "--decode", "2", "--dtype", "float32") as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        await wait_all_ready(url)
        expected = await stream(client, 0, 200, "undisturbed")
        request = {**body(0, 200), "cache_salt": "disturbed"}
        async with client.stream("POST", "/v1/completions", json=request) as response:
            leaving = response.headers["x-baton-decode"]
            pid, tokens = await pid_of(leaving, url), tokens_of(response)
            seen = [await anext(tokens) for _ in range(20)]
            await change(url, leaving, "prefill", "--timeout-s", "0.05")
            seen += [token async for token in tokens]
        assert seen == expected
        assert await pid_of(leaving, url) == pid
        [changed] = [each for each in await wait_idle(url) if each["worker_id"] == leaving]
        assert changed["cached_blocks"] > 0  # its prefix cache stayed, and the router has a new snapshot of it
        info = re.compile(rf'^baton:worker_info{{.*role="prefill".*worker="{leaving}".*}} 1.0$', re.MULTILINE)
        assert info.search((await client.get("/metrics")).text)
        staying = {"decode-0": "decode-1", "decode-1": "decode-0"}[leaving]
        refusal = await run("role", staying, "prefill", "--url", url)
        assert f"{staying} is the last decode worker that accepts requests" in refusal
        assert await stream(client, 0, 200, "after") == expected


@pytest.mark.slow
async def test_roles_change_there_and_back_under_load() -> None:
    num_tokens = 150
    async with (
        served("", *FLAGS) as url,
        httpx.AsyncClient(base_url=url, timeout=120, trust_env=False, verify=False) as client,
    ):
        await wait_all_ready(url)
        expected = [await stream(client, number, num_tokens, "undisturbed") for number in range(NUM_STREAMS)]
        pids = {name: await pid_of(name, url) for name in await states(url)}
        done, stopping = 0, asyncio.Event()

        async def load(number: int) -> None:
            nonlocal done
            while not stopping.is_set():
                assert await stream(client, number, num_tokens, f"load-{done}") == expected[number]
                done += 1

        async def change_all() -> None:
            changes = (
                ("decode-1", "prefill"),  # 3 + 1
                ("prefill-0", "decode"),  # 2 + 2, with the roles exchanged
                ("prefill-1", "both"),
                ("decode-1", "decode"),
                ("prefill-1", "prefill"),
                ("prefill-0", "prefill"),
            )
            for worker, role in changes:
                served_before = done
                await change(url, worker, role, "--timeout-s", DRAIN_S)
                while done < served_before + NUM_STREAMS:  # streams begin and end in this arrangement
                    await asyncio.sleep(0.05)
            stopping.set()

        async with asyncio.timeout(300), asyncio.TaskGroup() as tasks:
            for number in range(NUM_STREAMS):
                tasks.create_task(load(number))
            tasks.create_task(change_all())
        await wait_idle(url)  # all blocks are returned
        roles = {name: (name[:-2], "ready") for name in pids}
        assert await states(url) == roles
        assert {name: await pid_of(name, url) for name in pids} == pids
        assert await counter(client, "workers_lost") == 0
