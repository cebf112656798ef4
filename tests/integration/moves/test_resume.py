"""Streams that are resumed at another router must equal an undisturbed stream, token for token."""

import asyncio
import random
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from baton.settings.names import Role
from tests.integration.clients.resuming_client import CHAT, COMPLETIONS, Outcome, Resuming, outcome
from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_workers
from tests.integration.together import together
from tests.integration.worker_process import WorkerProcess, worker_processes
from tests.marks import slow_case, slow_except

PROMPT = "The cat sat on the mat. The dog"
MESSAGES = [{"role": "user", "content": "Tell me of a cat and a dog."}]
LENGTH = 24
BASE: dict[str, Any] = {
    "stream": True,
    "max_tokens": LENGTH,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
}
SAMPLED = {"temperature": 1.0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": (COMPLETIONS, {"prompt": PROMPT, "temperature": 0}),
    "greedy chat": (CHAT, {"messages": MESSAGES, "temperature": 0}),
    "seeded with penalties": (COMPLETIONS, {"prompt": PROMPT, "seed": 7, **SAMPLED}),
    "unseeded": (CHAT, {"messages": MESSAGES, **SAMPLED}),
    "logprobs": (COMPLETIONS, {"prompt": PROMPT, "logprobs": 2, **SAMPLED}),
    "logprobs of chat": (CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2, **SAMPLED}),
    "echo": (COMPLETIONS, {"prompt": PROMPT, "logprobs": 1, "echo": True, "temperature": 0}),
    "echo of several prompts": (
        COMPLETIONS,
        {"prompt": [PROMPT, "Once upon a time"], "n": 2, "logprobs": 1, "echo": True, **SAMPLED},
    ),
    "several": (CHAT, {"messages": MESSAGES, "n": 3, **SAMPLED}),
    "several prompts": (COMPLETIONS, {"prompt": [PROMPT, "Once upon a time", PROMPT], "n": 2, **SAMPLED}),
    "stop string": (CHAT, {"messages": MESSAGES, "temperature": 0, "stop": ["small demo", "zzz"]}),
    "stop string of several": (CHAT, {"messages": MESSAGES, "n": 2, "stop": ["demo", "model"], **SAMPLED}),
    "end token": (CHAT, {"messages": MESSAGES, "ignore_eos": False, "min_tokens": 3, **SAMPLED}),
}

USUAL = ("seeded with penalties", "logprobs of chat", "stop string of several")


@dataclass(frozen=True)
class Cluster:
    """Two routers with two decode workers."""

    routers: tuple[RouterProcess, RouterProcess]
    workers: list[WorkerProcess]


@asynccontextmanager
async def cluster_of(
    directory: Path, *flags: str, roles: tuple[Role, Role] = ("decode", "decode"), policy: str = "cost"
) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        processes = worker_processes(MODEL, directory, *((role, "--dtype=float32", *flags) for role in roles))
        workers = await stack.enter_async_context(processes)
        router_flags = ("--port=0", f"--workers={','.join(worker.address for worker in workers)}", f"--policy={policy}")
        routers = together(*(router_process(directory, *router_flags) for _ in range(2)))
        first, second = await stack.enter_async_context(routers)
        for router in (first, second):
            async with router.client() as client:
                await wait_workers(client, len(workers))
        yield Cluster((first, second), workers)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with cluster_of(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@asynccontextmanager
async def clients_of(cluster: Cluster) -> AsyncIterator[list[httpx.AsyncClient]]:
    async with cluster.routers[0].client() as first, cluster.routers[1].client() as second:
        yield [first, second]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def undisturbed(resumed: Resuming) -> Outcome:
    """Run the same request at one router without resuming."""
    again = Resuming(resumed.clients, resumed.path, resumed.body, resumed.headers, resumed.request_id)
    return outcome((await again.to_end()).events)


async def num_resumed(clients: list[httpx.AsyncClient], how: str) -> int:
    """Return how often the routers resumed a request in the way `how`."""
    pattern = re.compile(rf'baton:requests_resumed_total{{how="{how}",.*}} (\d+)')
    pages = [(await client.get("/metrics")).text for client in clients]
    return sum(int(found) for page in pages for found in pattern.findall(page))


@pytest.mark.parametrize("steps", [[2, 3, 7], slow_case([1])], ids=["some events at a time", "one event at a time"])
@pytest.mark.parametrize("name", slow_except(CASES, USUAL))
async def test_a_resumed_stream_equals_an_undisturbed_one(cluster: Cluster, name: str, steps: list[int]) -> None:
    path, options = CASES[name]
    rng = random.Random(name)
    async with clients_of(cluster) as clients:
        num_recalled = await num_resumed(clients, "recalled")
        resuming = Resuming(clients, path, {**BASE, **options})
        await resuming.attempt(1)  # on a busy machine, the next events may have all the rest
        while not resuming.is_done:
            await resuming.attempt(rng.choice(steps))
        expected = await undisturbed(resuming)
        assert outcome(resuming.events) == expected
        assert expected.ends.keys() == expected.texts.keys()
        assert all(len(ends) == 1 for ends in expected.ends.values())
        assert "stop" not in options or expected.ends[0][0][0] == "stop"
        assert await num_resumed(clients, "recalled") > num_recalled
        assert not await num_resumed(clients, "failed")
    for worker in cluster.workers:
        await worker.wait_idle()


async def test_a_client_that_lost_only_the_end_receives_only_usage(cluster: Cluster) -> None:
    async with clients_of(cluster) as clients:
        resuming = Resuming(clients, CHAT, {**BASE, "messages": MESSAGES, "n": 2})
        await resuming.to_end()
        expected, num_events = outcome(resuming.events), len(resuming.events)
        await resuming.to_end()
        [last] = resuming.events[num_events:]
        assert (last["choices"], outcome([last]).usage) == ([], expected.usage)


async def test_a_killed_routers_stream_resumes_at_another(cluster: Cluster, tmp_path: Path) -> None:
    addresses = ",".join(worker.address for worker in cluster.workers)
    body = {**BASE, "messages": MESSAGES, "max_tokens": 200, **SAMPLED}
    async with router_process(tmp_path, "--port=0", f"--workers={addresses}") as victim, victim.client() as client:
        await wait_workers(client, len(cluster.workers))
        async with clients_of(cluster) as clients:
            lost = Resuming([client, *clients], CHAT, body)
            streaming = asyncio.create_task(lost.attempt())
            async with asyncio.timeout(20):
                while len(lost.events) < 10:
                    await asyncio.sleep(0.001)
            await victim.kill()
            with pytest.raises(httpx.TransportError):
                await streaming
            await lost.to_end()
            assert outcome(lost.events) == await undisturbed(Resuming(clients, CHAT, body, request_id=lost.request_id))


@pytest.mark.parametrize("options", [{}, {"n": 3, **SAMPLED}, {"logprobs": True, **SAMPLED}])
async def test_a_whole_response_is_recalled(cluster: Cluster, options: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, "max_tokens": LENGTH, "return_token_ids": True, **options}
    async with clients_of(cluster) as clients:
        num_recalled = await num_resumed(clients, "recalled")
        headers = {"x-request-id": f"whole-{len(options)}-{num_recalled}"}
        first = await clients[0].post(CHAT, json=body, headers={**headers, "x-baton-resumable": "true"})
        resume = {**headers, "x-baton-resume": f"{headers['x-request-id']}; tokens=0"}
        second = await clients[1].post(CHAT, json=body, headers=resume)
        assert (first.status_code, second.status_code) == (200, 200), second.text
        assert first.headers["x-baton-resumable"] == second.headers["x-baton-resumable"] == "true"
        assert first.json()["choices"] == second.json()["choices"]
        for name in ("prompt_tokens", "completion_tokens"):
            assert first.json()["usage"][name] == second.json()["usage"][name]
        assert await num_resumed(clients, "recalled") == num_recalled + 1


async def test_a_position_with_another_digest_is_refused(cluster: Cluster) -> None:
    async with clients_of(cluster) as clients:
        resuming = Resuming(clients, CHAT, {**BASE, "messages": MESSAGES})
        await resuming.attempt(5)
        count, _, digest = resuming.position.partition(":")
        for position in (f"{count}:{int(digest, 16) ^ 1:08x}", f"{int(count) - 1}:{digest}"):
            resuming.position = position
            await resuming.attempt()
            assert resuming.last is not None
            assert resuming.last.status_code == 409
            assert resuming.last.json()["error"]["code"] == "resume_failed"


async def test_another_clients_request_is_not_found(cluster: Cluster) -> None:
    async with clients_of(cluster) as clients:
        body = {**BASE, "prompt": PROMPT, "temperature": 2}
        mine = Resuming(clients, COMPLETIONS, body, {"authorization": "Bearer mine"}, "one-id")
        await mine.attempt(5)
        theirs = Resuming(clients, COMPLETIONS, body, {"authorization": "Bearer theirs"}, "one-id", num_attempts=1)
        num_regenerated = await num_resumed(clients, "regenerated")
        await theirs.to_end()
        assert await num_resumed(clients, "regenerated") == num_regenerated + 1
        assert outcome(theirs.events).texts != (await undisturbed(mine)).texts  # the other client has another seed
        theirs.position = mine.position
        await theirs.attempt()
        assert theirs.last is not None
        assert theirs.last.status_code == 409


@pytest.mark.slow
async def test_output_that_no_worker_remembers_is_generated_again(tmp_path: Path) -> None:
    async with cluster_of(tmp_path, "--orphan-timeout-s=0") as cluster, clients_of(cluster) as clients:
        for options in ({"temperature": 0}, {"logprobs": True, **SAMPLED}, {"n": 2, **SAMPLED}):
            resuming = Resuming(clients, CHAT, {**BASE, "messages": MESSAGES, **options})
            for num_events in (1, 8, 20):
                await resuming.attempt(num_events)
                for worker in cluster.workers:
                    await worker.wait_idle()  # the routers' aborts have arrived
            await resuming.to_end()
            assert outcome(resuming.events) == await undisturbed(resuming)
        assert await num_resumed(clients, "recalled") == 0
        assert await num_resumed(clients, "regenerated") == 9


async def test_a_handed_over_prompts_stream_is_resumed(tmp_path: Path) -> None:
    async with (
        cluster_of(tmp_path, roles=("prefill", "decode"), policy="always_remote") as cluster,
        clients_of(cluster) as clients,
    ):
        for number in range(2):  # also cut between the first token and the last block
            body = {**BASE, "prompt": f"{number} {PROMPT * 8}", **SAMPLED}
            resuming = Resuming(clients, COMPLETIONS, body)
            while not resuming.is_done:
                await resuming.attempt(1 if resuming.num_attempts < 3 else None)
            assert outcome(resuming.events) == await undisturbed(resuming)
        assert not await num_resumed(clients, "failed")
        for worker in cluster.workers:
            await worker.wait_idle()


async def test_a_worker_lost_with_its_router_costs_no_token(tmp_path: Path) -> None:
    async with cluster_of(tmp_path) as cluster, clients_of(cluster) as clients:
        resuming = Resuming(clients, CHAT, {**BASE, "messages": MESSAGES, **SAMPLED})
        await resuming.attempt(5)
        assert resuming.last is not None
        names = [(await worker.describe()).worker_id for worker in cluster.workers]
        victim = cluster.workers[names.index(resuming.last.headers["x-baton-decode"])]
        victim.child.kill()
        await victim.child.wait()
        await resuming.to_end()
        assert outcome(resuming.events) == await undisturbed(resuming)
