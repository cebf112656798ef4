"""Requests that lose their worker or their client."""

import asyncio
from typing import Any

import httpx
import orjson
import pytest

from baton.protos import common_pb2
from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL, RequestDelta
from baton.router.workers.attach_stream import Mailbox
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until, wait_cached, wait_workers
from tests.unit.router.rigs.scripted_worker import BLOCK_SIZE, ScriptedWorker, position_logprobs, scripted

BODY: dict[str, Any] = {"prompt": "The cat sat on the mat", "max_tokens": 12, "seed": 9, "return_token_ids": True}


async def complete(router: RunningRouter, **options: Any) -> dict[str, Any]:
    answer = await router.http.post("/v1/completions", json={**BODY, **options})
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


async def wait_tokens(router: RunningRouter, count: int) -> None:
    """Wait until the router has counted this many output tokens."""
    async with asyncio.timeout(20):
        line = f'baton:generation_tokens_total{{model_name="bundled_model"}} {count}.0'
        while line not in (await router.http.get("/metrics")).text:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_continues_at_another_worker_with_the_same_tokens(stream: bool) -> None:
    first, second = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    async with running_router(first, second) as router:
        expected = await complete(router, logprobs=0, echo=True)
        first.commands.clear()
        second.commands.clear()
        first.go_on.clear()
        second.go_on.clear()
        request = asyncio.create_task(
            router.http.post("/v1/completions", json={**BODY, "stream": stream, "logprobs": 0, "echo": True})
        )
        await until(lambda: bool(first.commands or second.commands))
        victim, other = (first, second) if first.commands else (second, first)
        await wait_tokens(router, 13)  # the first one came, after the twelve before
        other.go_on.set()
        await victim.stop()
        answer = await request
        [command] = other.commands
        assert command.num_prompt_tokens == len(command.token_ids) - 1  # the first token had come
        assert command.sampling.seed == 9
        assert command.sampling.max_tokens == 12
        if stream:
            assert answer.text.count('"finish_reason":"length"') == 1
            assert answer.text.endswith("data: [DONE]\n\n")
        else:
            body = answer.json()
            assert body["choices"] == expected["choices"]
            assert body["usage"]["completion_tokens"] == 12


async def test_no_other_model_continues_an_output() -> None:
    old, new = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    new.fingerprint = "another"
    pinned = {"x-baton-decode": "decode-0"}
    async with running_router(old, new, failover_timeout_s=0.1) as router:
        old.go_on.clear()
        request = asyncio.create_task(router.http.post("/v1/completions", json=BODY, headers=pinned))
        await until(lambda: bool(old.commands))
        await old.stop()
        assert (await request).status_code == 503
        assert not new.commands


async def test_no_other_model_continues_the_logprobs_of_a_prompt() -> None:
    old, new = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    new.fingerprint = "another"
    first = position_logprobs(300, 1)
    old.refusal = RequestDelta(prompt_logprobs=[first], finish_reason=common_pb2.FINISH_REASON_ABORT)
    async with running_router(old, new, policy="round_robin", failover_timeout_s=0.1) as router:
        answer = await router.http.post("/v1/completions", json={**BODY, "echo": True, "logprobs": 1})
        assert old.commands
        assert not new.commands
        assert answer.status_code == 503


async def test_a_request_waits_for_its_worker_to_come_back() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        expected = await complete(router)
        worker.go_on.clear()
        request = asyncio.create_task(complete(router))
        await until(lambda: len(worker.commands) == 2)
        await worker.stop()
        await wait_workers(router.http, 0)
        worker.go_on.set()
        await worker.start()
        assert (await request)["choices"] == expected["choices"]


async def test_retries_are_bounded() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker, failover_timeout_s=0.1) as router:
        request = asyncio.create_task(router.http.post("/v1/completions", json=BODY))
        await until(lambda: bool(worker.commands))
        await worker.stop()
        answer = await request
        assert answer.status_code == 503
        assert "no decode worker" in answer.json()["error"]["message"]


async def test_a_request_that_a_worker_aborts_moves_to_another() -> None:
    quitter, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    quitter.refusal = RequestDelta(finish_reason=common_pb2.FINISH_REASON_ABORT)
    async with running_router(quitter, other, policy="round_robin") as router:
        await complete(router)
        assert len(quitter.commands) == len(other.commands) == 1


async def test_tokens_that_came_with_a_failure_are_kept() -> None:
    async with running_router(ScriptedWorker()) as router:
        [choice] = (await complete(router))["choices"]
    quitter, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    quitter.refusal = RequestDelta(token_ids=choice["token_ids"][:5], finish_reason=common_pb2.FINISH_REASON_ABORT)
    async with running_router(quitter, other, policy="round_robin") as router:
        assert (await complete(router))["choices"] == [choice]
        assert len(other.commands[0].token_ids) == other.commands[0].num_prompt_tokens + 5


async def test_a_draining_worker_keeps_its_requests_and_gets_no_new_ones() -> None:
    leaving, staying = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    leaving.go_on.clear()
    async with running_router(leaving, staying, policy="round_robin") as router:
        request = asyncio.create_task(complete(router))
        await until(lambda: bool(leaving.commands))
        leaving.draining = True
        leaving.news()
        await wait_workers(router.http, 1, "draining")
        for _ in range(4):
            await complete(router)
        assert (len(leaving.commands), len(staying.commands)) == (1, 4)
        leaving.go_on.set()
        assert (await request)["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize("has_kv", [True, False])
async def test_a_handed_off_request_continues_elsewhere_with_its_kv(has_kv: bool) -> None:
    async with running_router(ScriptedWorker()) as router:
        expected = await complete(router)
    leaving, staying = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    leaving.go_on.clear()
    async with running_router(leaving, staying, policy="round_robin", failover_attempts=0) as router:
        request = asyncio.create_task(complete(router))
        await until(lambda: bool(leaving.commands))
        tokens = list(leaving.commands[0].token_ids)
        if has_kv:
            leaving.cache(tokens)
            await wait_cached(router.http, leaving, len(tokens) // BLOCK_SIZE)
        leaving.draining = leaving.gives_away = True
        leaving.news()
        await wait_workers(router.http, 1, "draining")
        leaving.go_on.set()
        assert (await request)["choices"] == expected["choices"]
        [command] = staying.commands
        assert command.token_ids == [*tokens, expected["choices"][0]["token_ids"][0]]
        assert command.prefix_source.incarnation == (leaving.incarnation if has_kv else "")
        handed_off = leaving.commands[0].request_id
        assert command.prefix_source.handed_off == (handed_off if has_kv else "")
        await until(lambda: leaving.aborted == [handed_off])  # it need not wait for a pull
        assert not command.HasField("prefill")
        text = (await router.http.get("/metrics")).text
        plan = "local_with_source" if has_kv else "local"
        assert f'requests_by_plan_total{{model_name="bundled_model",plan="{plan}"}}' in text


async def test_the_kv_of_a_handed_off_request_is_released_when_its_client_leaves() -> None:
    leaving = ScriptedWorker("decode-0")
    leaving.go_on.clear()
    async with running_router(leaving, failover_timeout_s=60.0) as router:
        request = asyncio.create_task(complete(router))
        await until(lambda: bool(leaving.commands))
        leaving.draining = leaving.gives_away = True
        leaving.news()
        leaving.go_on.set()
        async with asyncio.timeout(20):
            line = 'baton:requests_handed_off_total{model_name="bundled_model"} 1.0'
            while line not in (await router.http.get("/metrics")).text:
                await asyncio.sleep(0.005)
        assert not leaving.aborted  # another worker may come, and pull it
        request.cancel()
        await until(lambda: leaving.aborted == [leaving.commands[0].request_id])


async def test_the_kv_of_a_request_that_ends_with_the_last_tokens_of_its_worker_is_released() -> None:
    leaving = ScriptedWorker("decode-0")
    async with running_router(leaving) as router:
        [choice] = (await complete(router))["choices"]
        leaving.refusal = RequestDelta(token_ids=choice["token_ids"], finish_reason=common_pb2.FINISH_REASON_HANDED_OFF)
        [stopped] = (await complete(router, stop=choice["text"][2]))["choices"]
        assert stopped["finish_reason"] == "stop"
        await until(lambda: leaving.aborted == [leaving.commands[-1].request_id])


async def test_the_kv_of_a_request_whose_client_leaves_before_its_hand_off_is_read_is_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaving = ScriptedWorker("decode-0")
    leaving.go_on.clear()
    leaving.gives_away = True
    boxes, get, forever = list[Mailbox](), Mailbox.get, asyncio.Event()

    async def get_first(box: Mailbox) -> RequestDelta:
        if box in boxes:
            await forever.wait()  # its client does not read
        boxes.append(box)
        return await get(box)

    monkeypatch.setattr(Mailbox, "get", get_first)
    async with running_router(leaving) as router:
        request = asyncio.create_task(complete(router))
        await until(lambda: bool(boxes))
        leaving.go_on.set()
        await until(lambda: boxes[0].is_handed_off)
        request.cancel()
        await until(lambda: leaving.aborted == [leaving.commands[0].request_id])


async def test_hand_offs_do_not_count_as_failures() -> None:
    leaving = [ScriptedWorker(f"decode-{number}") for number in range(3)]
    staying = ScriptedWorker("decode-3")
    for worker in leaving:
        worker.refusal = RequestDelta(finish_reason=common_pb2.FINISH_REASON_HANDED_OFF)
    async with running_router(*leaving, staying, policy="round_robin", failover_attempts=1) as router:
        assert (await complete(router))["usage"]["completion_tokens"] == 12
        assert [len(worker.commands) for worker in leaving] == [1, 1, 1]
        text = (await router.http.get("/metrics")).text
        assert 'baton:requests_handed_off_total{model_name="bundled_model"} 3.0' in text


async def test_the_index_discards_an_earlier_incarnation_and_recovers_from_a_gap() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        worker.cache(list(range(40)))
        await wait_cached(router.http, worker, 10)
        worker.skip_sequence = True
        worker.cache(list(range(100, 120)))
        await wait_cached(router.http, worker, 15)
        worker.cache(list(range(200, 220)))  # its event's number is one too high
        await wait_cached(router.http, worker, 20)
        assert worker.num_watches == 2
        await worker.stop()
        await wait_workers(router.http, 0)
        await worker.start()
        await wait_workers(router.http, 1)
        [state] = (await router.http.get("/workers")).json()["workers"]
        assert (state["cached_blocks"], state["incarnation"]) == (0, "decode-0/2")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_completions", [1, 3])
async def test_a_disconnect_cancels_the_request(stream: bool, num_completions: int) -> None:
    worker = ScriptedWorker()
    worker.max_model_len = 10**6
    async with running_router(worker) as router:
        body = {**BODY, "stream": stream, "max_tokens": 10**5, "n": num_completions, "return_token_ids": False}
        async with httpx.AsyncClient(base_url=router.url, trust_env=False, verify=False) as client:
            request = asyncio.create_task(client.post("/v1/completions", json=body))
            await until(lambda: len(worker.commands) == num_completions)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        await until(lambda: len(worker.aborted) == num_completions)
        assert sorted(worker.aborted) == sorted(command.request_id for command in worker.commands)
        view = (await router.http.get("/workers")).json()
        assert view["workers"][0]["inflight"] == view["router"]["inflight"] == 0


async def test_a_slow_reader_delays_no_other_and_gets_everything() -> None:
    worker = ScriptedWorker()
    worker.max_model_len = 10**6
    worker.script = scripted([300, 400, 500], 0)
    async with running_router(worker) as router:
        body = {**BODY, "stream": True, "max_tokens": 4_000, "return_token_ids": True}
        async with router.http.stream("POST", "/v1/completions", json=body) as slow:
            lines = slow.aiter_lines()
            first = await anext(lines)
            assert (await complete(router))["usage"]["completion_tokens"] == 12
            events = [line async for line in lines if line]
        assert events.pop() == "data: [DONE]"
        choices = [orjson.loads(line.removeprefix("data: "))["choices"][0] for line in (first, *events)]
        assert sum(len(choice["token_ids"]) for choice in choices) == 4_000


async def test_another_fingerprint_is_not_paired() -> None:
    decode, prefill = ScriptedWorker(), ScriptedWorker("prefill-0", WORKER_ROLE_PREFILL)
    prefill.fingerprint = "another model"
    async with running_router(decode, prefill, local_prefill_below=0) as router:
        await complete(router)
        assert not decode.commands[0].HasField("prefill")
