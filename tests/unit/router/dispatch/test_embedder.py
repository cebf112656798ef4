"""Embedding requests at workers that refuse, fail or hang."""

import asyncio
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from baton.protos import worker_pb2
from baton.router import inline_work
from baton.router.dispatch import embedder
from baton.router.dispatch.embedder import MAX_REFUSALS
from baton.router.dispatch.embedding_job import divided
from baton.router.embeddings.tokens import held_bytes
from baton.router.generation import PromptHashes
from tests.unit.router.api_keys import TestKeys
from tests.unit.router.dispatch.embedding_worker import EmbeddingWorker, vector_of
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until, wait_workers
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

INPUTS = [[5 + place, 6, 7] for place in range(50)]
VECTORS = [pytest.approx(vector_of(each)) for each in INPUTS]


async def embed(router: RunningRouter, given: object = INPUTS, **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return await router.http.post("/v1/embeddings", json={"input": given}, headers=names)


def vectors(response: httpx.Response) -> list[list[float]]:
    assert response.status_code == 200, response.text
    return [each["embedding"] for each in response.json()["data"]]


async def metric(router: RunningRouter, name: str) -> float:
    text = (await router.http.get("/metrics")).text
    [line] = [line for line in text.splitlines() if line.startswith(f"baton:{name}{{")]
    return float(line.rpartition(" ")[2])


def error(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["message"]


async def test_inputs_are_divided_between_workers() -> None:
    first, second = EmbeddingWorker("a"), EmbeddingWorker("b")
    async with running_router(first, second) as router:
        assert vectors(await embed(router)) == VECTORS
        assert first.calls
        assert second.calls
        assert all(call.number and call.router_id for call in (*first.calls, *second.calls))
        assert await metric(router, "embedding_inputs_total") == len(INPUTS)
        assert await metric(router, "prefix_cache_hits_total") == len(INPUTS)
        assert (await router.http.get("/ready")).status_code == 200
        first.calls.clear()
        second.calls.clear()
        assert vectors(await embed(router, x_baton_prefill="b")) == VECTORS
        assert not first.calls


async def test_the_event_loop_has_turns_between_the_batches_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline_work, "TURN_S", 1e-9)  # less than any work takes
    worker, turn = EmbeddingWorker(), 0
    hashed, sent = defaultdict[int, set[PromptHashes]](set), Counter[int]()  # inputs by turn
    extended, message = PromptHashes.extended, embedder.embed_request

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    def note_hashed(hashes: PromptHashes, *args: Any) -> bytes:
        hashed[turn].add(hashes)
        return extended(hashes, *args)

    def note_sent(*args: Any) -> worker_pb2.EmbedRequest:
        made = message(*args)
        sent[turn] += len(made.inputs)
        return made

    monkeypatch.setattr(PromptHashes, "extended", note_hashed)
    monkeypatch.setattr(embedder, "embed_request", note_sent)
    async with running_router(worker) as router:
        counting = asyncio.create_task(count_turns())
        assert vectors(await embed(router)) == VECTORS
        counting.cancel()
    assert sum(map(len, hashed.values())) == sent.total() == len(INPUTS)
    assert max(len(hashed[each]) + sent[each] for each in range(turn)) == len(INPUTS) // 2  # one batch


async def test_only_missing_inputs_go_to_another_worker() -> None:
    first, second = EmbeddingWorker("a"), EmbeddingWorker("b")
    first.max_results = 3
    async with running_router(first, second) as router:
        assert vectors(await embed(router)) == VECTORS
        num_asked = sum(len(call.inputs) for call in second.calls)
        assert num_asked == len(INPUTS) - 3
        assert await metric(router, "failovers_total") >= 1


async def test_full_workers_are_asked_again() -> None:
    worker = EmbeddingWorker()
    worker.refusals = [grpc.StatusCode.RESOURCE_EXHAUSTED] * 4
    async with running_router(worker, failover_timeout_s=3.0) as router:
        assert vectors(await embed(router)) == VECTORS
        worker.refusals = [grpc.StatusCode.RESOURCE_EXHAUSTED] * 400
        status, text = error(await embed(router))
        assert (status, text) == (429, "refused")
        worker.refusals.clear()
        assert vectors(await embed(router, INPUTS[:2])) == VECTORS[:2]


@pytest.mark.parametrize("attempts", [0, 1])
async def test_retries_of_lost_workers_are_bounded(attempts: int) -> None:
    worker = EmbeddingWorker()
    worker.refusals = [grpc.StatusCode.UNAVAILABLE] * 100
    async with running_router(worker, failover_attempts=attempts, failover_timeout_s=0.1) as router:
        assert error(await embed(router, INPUTS[:1])) == (503, "worker prefill-0: refused")
        assert len(worker.calls) == 1  # the only worker is not asked again


async def test_a_worker_is_asked_again_after_its_connection_was_cut() -> None:
    worker = EmbeddingWorker()
    worker.may_embed.clear()
    async with running_router(worker, failover_timeout_s=10.0) as router:
        request = asyncio.ensure_future(embed(router, INPUTS[:1]))
        await until(lambda: len(worker.calls) == 1)
        await worker.stop()
        worker.num_lives -= 1  # the same incarnation returns
        await worker.start()
        worker.may_embed.set()
        assert vectors(await request) == VECTORS[:1]
        assert len(worker.calls) == 2


async def test_drains_are_a_pause() -> None:
    """A worker that drained, and now serves again, is asked again."""
    workers = [EmbeddingWorker(f"prefill-{place}") for place in range(5)]
    async with running_router(*workers, failover_timeout_s=5.0) as router:
        for worker in workers:
            worker.num_drained = 1
        assert vectors(await embed(router, INPUTS[:1])) == VECTORS[:1]
        assert sum(len(worker.calls) for worker in workers) == 6


@pytest.mark.parametrize(("timeout_s", "status"), [(0.1, 503), (30.0, 200)])
async def test_batches_that_begin_while_the_only_worker_drains_wait(
    monkeypatch: pytest.MonkeyPatch, timeout_s: float, status: int
) -> None:
    monkeypatch.setattr(embedder, "MAX_REQUEST_BATCHES", 1)
    worker = EmbeddingWorker()
    worker.may_embed.clear()
    async with running_router(worker, failover_timeout_s=timeout_s) as router:
        request = asyncio.create_task(embed(router))
        await until(lambda: len(worker.calls) == 1)
        worker.draining = True
        worker.news()
        await wait_workers(router.http, 1, "draining")
        worker.may_embed.set()
        async with asyncio.timeout(10):
            while await metric(router, "embedding_inputs_total") < len(worker.calls[0].inputs):
                await asyncio.sleep(0.005)
        if status == 200:
            worker.draining = False
            worker.news()
        assert (await request).status_code == status
        assert len(worker.calls) == (2 if status == 200 else 1)


async def test_without_a_worker_that_takes_requests_one_can_try_again() -> None:
    worker = EmbeddingWorker()
    async with running_router(worker, failover_timeout_s=0.1) as router:
        worker.num_drained = 100
        response = await embed(router, INPUTS[:1])
        assert error(response) == (503, "worker prefill-0: draining")
        assert response.headers.get("x-should-retry") != "false"
        assert len(worker.calls) == 1


@pytest.mark.slow
async def test_a_worker_that_refuses_for_ever_is_given_up() -> None:
    worker = EmbeddingWorker()
    async with running_router(worker, failover_timeout_s=10.0) as router:
        worker.num_drained = 100
        assert error(await embed(router, INPUTS[:1])) == (503, "worker prefill-0: draining")
        assert len(worker.calls) == MAX_REFUSALS


async def test_batches_that_wait_for_their_turn_at_a_draining_worker_go_elsewhere() -> None:
    draining, other = EmbeddingWorker("prefill-0"), EmbeddingWorker("prefill-1")
    draining.may_embed.clear()
    other.may_embed.clear()
    async with running_router(draining, other, failover_attempts=0) as router:
        requests = [asyncio.create_task(embed(router, [[5, 6]] * 200)) for _ in range(4)]
        await until(lambda: len(draining.calls) >= 4 and len(other.calls) >= 4)
        draining.draining = True
        draining.news()
        await wait_workers(router.http, 1, "draining")
        num_sent = len(draining.calls)
        draining.may_embed.set()
        other.may_embed.set()
        for request in requests:
            assert (await request).status_code == 200
        assert len(draining.calls) == num_sent


@pytest.mark.parametrize(
    ("size", "code", "status"),
    [(7, None, 500), (8, grpc.StatusCode.INVALID_ARGUMENT, 400), (8, grpc.StatusCode.INTERNAL, 500)],
)
async def test_other_failures_are_not_retried(size: int, code: grpc.StatusCode | None, status: int) -> None:
    worker = EmbeddingWorker()
    worker.size = size
    worker.refusals = [code] if code is not None else []
    async with running_router(worker) as router:
        assert (await embed(router, INPUTS[:1])).status_code == status
        assert len(worker.calls) == 1


async def test_deadlines_and_disconnected_clients_cancel_calls() -> None:
    worker = EmbeddingWorker()
    worker.may_embed.clear()
    async with running_router(worker) as router:
        assert error(await embed(router, INPUTS[:1], x_baton_timeout="0.1"))[0] == 504
        await until(lambda: worker.num_cancelled == 1)
        with pytest.raises(httpx.ReadTimeout):
            await router.http.post("/v1/embeddings", json={"input": [5]}, timeout=0.2)
        await until(lambda: worker.num_cancelled == 2)
        worker.may_embed.set()
        assert vectors(await embed(router)) == VECTORS
        view = (await router.http.get("/workers")).json()
        assert [each["inflight"] for each in view["workers"]] == [0]


async def test_a_router_that_shuts_down_ends_requests() -> None:
    worker = EmbeddingWorker()
    worker.may_embed.clear()
    async with running_router(worker, drain_timeout_s=0.1) as router:
        request = asyncio.ensure_future(embed(router, INPUTS[:1]))
        await until(lambda: bool(worker.calls))
        router.stopping.set()
        response = await request
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "router_draining"


async def test_tokens_count_for_the_api_key(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    key = {"authorization": f"Bearer {keys.add('a', tokens_per_minute=100)}"}
    async with running_router(EmbeddingWorker(), api_keys_file=str(keys.path)) as router:
        assert (await embed(router, **key)).status_code == 200  # 150 tokens
        response = await embed(router, **key)
        assert response.status_code == 429
        assert response.json()["error"]["type"] == "tokens"
        assert (await embed(router)).status_code == 401


async def test_requests_wait_for_workers_for_embeddings_alone() -> None:
    worker = EmbeddingWorker()
    worker.may_embed.clear()
    async with running_router(worker, max_inflight=2, failover_timeout_s=0.1) as router:
        requests = [asyncio.create_task(embed(router)) for _ in range(5)]
        async with asyncio.timeout(10):
            while await metric(router, "router_waiting") < 3:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # longer than requests wait without a worker
        worker.may_embed.set()
        assert [vectors(response) for response in await asyncio.gather(*requests)] == [VECTORS] * 5


async def test_tokens_count_as_the_body_does_until_the_response() -> None:
    worker = EmbeddingWorker()
    worker.may_embed.clear()
    inputs = [[1000 + place, *range(300, 549)] for place in range(1000)]
    options: dict[str, Any] = {"max_body_bytes": 2 << 20, "max_client_body_bytes_in_flight": 5 << 20}
    async with running_router(worker, **options) as router:
        requests = [asyncio.create_task(embed(router, inputs)) for _ in range(2)]
        async with asyncio.timeout(10):
            while await metric(router, "router_body_bytes") != 2 * held_bytes(inputs):
                await asyncio.sleep(0.01)
        code, text = error(await embed(router, inputs))
        assert (code, "over the limit of 5242880 bytes" in text) == (429, True)
        requests[0].cancel()
        worker.may_embed.set()
        assert len(vectors(await requests[1])) == len(inputs)
        async with asyncio.timeout(10):
            while await metric(router, "router_body_bytes"):
                await asyncio.sleep(0.01)


async def test_deployments_that_make_no_embeddings() -> None:
    async with running_router(ScriptedWorker()) as router:
        assert error(await embed(router))[0] == 503
    async with running_router(ScriptedWorker("p", worker_pb2.WORKER_ROLE_PREFILL), ScriptedWorker()) as router:
        status, text = error(await embed(router))
        assert status == 400
        assert "does not make embeddings" in text


async def test_responses_that_a_client_could_not_read_are_refused() -> None:
    async with running_router(EmbeddingWorker(), max_request_unread_bytes=1 << 16) as router:
        response = await embed(router, [[5]] * 2000)
        assert error(response)[0] == 400
        assert "encoding_format" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "headers", "param"),
    [
        ({"input": "a", "dimensions": 4}, {}, "dimensions"),
        ({"input": ["a", "b " * 300]}, {}, "input[1]"),
        ({"input": "a", "encoding_format": "int8"}, {}, "encoding_format"),
        ({"input": "a", "normalise": True}, {}, "normalise"),
        ({"input": "a"}, {"x-baton-decode": "d"}, "x-baton-decode"),
        ({"input": "a"}, {"x-baton-plan": "local"}, "x-baton-plan"),
        ({"input": "a"}, {"x-baton-resumable": "true", "x-request-id": "r"}, "x-baton-resumable"),
    ],
)
async def test_bad_requests(body: dict[str, Any], headers: dict[str, str], param: str) -> None:
    async with running_router(EmbeddingWorker()) as router:
        response = await router.http.post("/v1/embeddings", json=body, headers=headers)
        assert response.status_code == 400
        assert response.json()["error"]["param"] == param


def test_batches_are_bounded_in_inputs_and_tokens() -> None:
    assert divided([1, 1, 1, 1, 1], 2, 100) == [[0, 1], [2, 3], [4]]
    assert divided([60, 60, 500, 10, 10], 4, 100) == [[0], [1], [2], [3, 4]]
    assert divided([], 4, 100) == []
