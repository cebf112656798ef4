"""Responses through the real client, over real HTTP: whole, streamed, stored, refused."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent

from baton.membership.registry.factory import open_registry
from tests.redis_server import redis_server
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.rigs.pools import member_of
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until, wait_workers
from tests.unit.router.rigs.scripted_worker import ScriptedWorker, scripted_turn

MODEL = "bundled_model"
PATH = "/v1/responses"
END = 2  # <|im_end|>
PARSERS = {"tool_call_parser": "hermes", "reasoning_parser": "qwen3"}
TOOLS: Any = [{"type": "function", "name": name, "parameters": None, "strict": None} for name in ("clock", "weather")]
THOUGHT, SAID = "It is late, I think.", "Let me look: ö."
ARGUMENTS = ['{"zone": "Ö, <x>"}', "{}"]
CALLS = "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    for name, arguments in zip(("clock", "weather"), ARGUMENTS, strict=True)
)
OUTPUT = f"<think>\n{THOUGHT}\n</think>\n\n{SAID}\n{CALLS}"


async def writing(worker: ScriptedWorker, router: RunningRouter, text: str) -> int:
    """Let the worker write a text after any prompt, and return the number of its tokens."""
    tokens = [*(await router.http.post("/tokenize", json={"prompt": text})).json()["tokens"], END]
    header = (await router.http.post("/tokenize", json={"prompt": "<|im_start|>assistant\n"})).json()["tokens"]
    worker.script = scripted_turn(tokens, header)
    worker.end_token = END
    return len(tokens)


async def create(router: RunningRouter, **options: Any) -> Response:
    fields = {"model": MODEL, "input": "What time?", **options}
    response: Response = await router.openai.responses.create(**fields)
    return response


async def events(router: RunningRouter, **options: Any) -> list[ResponseStreamEvent]:
    stream: Any = await router.openai.responses.create(
        **{"model": MODEL, "input": "What time?", "stream": True, **options}
    )
    return [event async for event in stream]


def without_ids(response: Response) -> Any:
    """Return the output without what differs between two responses."""
    items = [item.model_dump(exclude={"id", "call_id"}) for item in response.output]
    return items, response.usage and response.usage.output_tokens_details, response.status


async def test_a_whole_response_with_reasoning_text_and_calls() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        num_tokens = await writing(worker, router, OUTPUT)
        response = await create(router, tools=TOOLS, metadata={"a": "b"}, instructions=None, max_output_tokens=200)
        reasoning, message, *calls = response.output
        assert reasoning.type == "reasoning"
        assert [part.text for part in reasoning.content or ()] == [THOUGHT]
        assert message.type == "message"
        assert response.output_text == SAID
        assert [(call.name, call.arguments) for call in calls if call.type == "function_call"] == [
            ("clock", ARGUMENTS[0]), ("weather", ARGUMENTS[1]),
        ]  # fmt: skip
        assert len({item.id for item in response.output}) == 4
        assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
        assert response.usage is not None
        assert response.usage.output_tokens == num_tokens
        assert 0 < response.usage.output_tokens_details.reasoning_tokens < num_tokens
        assert (response.metadata, response.max_output_tokens) == ({"a": "b"}, 200)
        assert [tool.name for tool in response.tools if tool.type == "function"] == ["clock", "weather"]
        hidden = await create(router, tools=TOOLS, extra_body={"include_reasoning": False})
        assert [item.type for item in hidden.output] == ["message", "function_call", "function_call"]


async def test_a_stream_has_the_same_response_and_numbered_events() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, OUTPUT)
        whole = await create(router, tools=TOOLS)
        streamed = await events(router, tools=TOOLS)
        assert [event.sequence_number for event in streamed] == list(range(len(streamed)))
        last = streamed[-1]
        assert last.type == "response.completed"
        assert without_ids(last.response) == without_ids(whole)
        kinds = list(dict.fromkeys((event.type, getattr(event, "output_index", None)) for event in streamed))
        assert [(kind.removeprefix("response."), index) for kind, index in kinds] == [
            ("created", None), ("in_progress", None),
            ("output_item.added", 0), ("content_part.added", 0), ("reasoning_text.delta", 0),
            ("reasoning_text.done", 0), ("content_part.done", 0), ("output_item.done", 0),
            ("output_item.added", 1), ("content_part.added", 1), ("output_text.delta", 1),
            ("output_text.done", 1), ("content_part.done", 1), ("output_item.done", 1),
            ("output_item.added", 2), ("function_call_arguments.delta", 2), ("function_call_arguments.done", 2),
            ("output_item.done", 2),
            ("output_item.added", 3), ("function_call_arguments.delta", 3), ("function_call_arguments.done", 3),
            ("output_item.done", 3),
            ("completed", None),
        ]  # fmt: skip
        for kind, text in (("output_text", SAID), ("reasoning_text", THOUGHT)):
            assert "".join(each.delta for each in streamed if each.type == f"response.{kind}.delta") == text  # type: ignore[union-attr]  # deltas of texts
        done = [event.item for event in streamed if event.type == "response.output_item.done"]
        assert done == last.response.output


async def test_the_clients_accumulator() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, OUTPUT)
        async with router.openai.responses.stream(model=MODEL, input="What time?", tools=TOOLS) as stream:
            snapshots = [event.snapshot async for event in stream if event.type == "response.output_text.delta"]
            final = await stream.get_final_response()
        assert snapshots[-1] == final.output_text == SAID
        assert [call.arguments for call in final.output if call.type == "function_call"] == ARGUMENTS


@pytest.mark.slow
async def test_a_lagging_client_gets_all_of_it() -> None:
    """What is merged while a client does not read comes in front of the last event."""
    worker = ScriptedWorker()
    worker.max_model_len = 1 << 16
    worker.script = lambda token_ids, _: 300 + len(token_ids) % 3000  # cheaper than a hash of all tokens
    async with running_router(worker) as router:
        body = {"input": "a", "stream": True, "max_output_tokens": 30_000, "seed": 1, "ignore_eos": True}
        async with router.http.stream("POST", PATH, json=body, timeout=300) as response:
            async with asyncio.timeout(300):
                while (await router.http.get("/workers")).json()["router"]["inflight"]:
                    await asyncio.sleep(0.05)
            lines = [line async for line in response.aiter_lines()]
        data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        parsed = [httpx.Response(200, content=line).json() for line in data]
        assert [event["sequence_number"] for event in parsed] == list(range(len(parsed)))
        assert len(parsed) < 30_000  # some were merged
        deltas = [event["delta"] for event in parsed if event["type"] == "response.output_text.delta"]
        last = parsed[-1]["response"]
        assert last["usage"]["output_tokens"] == 30_000
        assert last["output"][0]["content"][0]["text"] == "".join(deltas)


async def test_an_incomplete_response_and_an_empty_one() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, OUTPUT)
        cut = await create(router, max_output_tokens=12)
        assert (cut.status, cut.incomplete_details and cut.incomplete_details.reason) == (
            "incomplete", "max_output_tokens",
        )  # fmt: skip
        assert [item.status for item in cut.output if item.type == "reasoning"] == ["incomplete"]
        assert (await events(router, max_output_tokens=12))[-1].type == "response.incomplete"
        await writing(worker, router, "")
        empty = await create(router)
        assert (empty.status, empty.output_text, len(empty.output)) == ("completed", "", 1)


async def test_logprobs_are_those_of_the_text() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, **PARSERS) as router:
        await writing(worker, router, OUTPUT)
        options: Any = {"tools": TOOLS, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
        whole = await create(router, **options)
        [streamed] = [each for each in await events(router, **options) if each.type == "response.completed"]
        found = []
        for response in (whole, streamed.response):
            [message] = [item for item in response.output if item.type == "message"]
            [part] = message.content
            assert part.type == "output_text"
            assert part.logprobs
            assert all(len(each.top_logprobs) == 2 for each in part.logprobs)
            found.append([each.token for each in part.logprobs])
        assert SAID in b"".join(bytes(each.bytes) for each in part.logprobs).decode()
        assert found[0] == found[1]


async def test_a_conversation_is_continued() -> None:
    async with running_router(ScriptedWorker()) as router:
        options: Any = {"max_output_tokens": 4, "temperature": 0}
        first = await create(router, **options, instructions="Be brief.")
        second = await create(router, **options, input="And now?", previous_response_id=first.id)
        assert second.previous_response_id == first.id
        messages: Any = [
            {"role": "user", "content": "What time?"},
            {"role": "assistant", "content": first.output_text},
            {"role": "user", "content": "And now?"},
        ]
        same = await create(router, **options, input=messages)
        assert same.output_text == second.output_text
        assert same.usage is not None
        assert second.usage is not None
        assert same.usage.input_tokens == second.usage.input_tokens
        referring = await create(
            router, **options, input=[messages[0], {"type": "item_reference", "id": first.output[0].id}, messages[2]]
        )
        assert referring.output_text == second.output_text
        assert (await router.openai.responses.retrieve(second.id)) == second
        listed = await router.openai.responses.input_items.list(second.id, order="asc", limit=2)
        texts = [item.content[0].text async for item in listed]  # type: ignore[union-attr, index]  # messages
        assert texts == ["What time?", first.output_text, "And now?"]
        assert [item.id async for item in listed][1] == first.output[0].id
        page = await router.openai.responses.input_items.list(second.id, limit=1)
        assert (len(page.data), page.has_more) == (1, True)


async def test_a_deleted_response_and_its_continuations() -> None:
    async with running_router(ScriptedWorker()) as router:
        first = await create(router, max_output_tokens=2)
        second = await create(router, max_output_tokens=2, previous_response_id=first.id)
        await router.openai.responses.delete(first.id)
        api = router.openai.responses
        for call in (api.retrieve, api.delete, api.cancel, api.input_items.list):
            with pytest.raises(openai.NotFoundError):
                await call(first.id)
        with pytest.raises(openai.NotFoundError) as caught:
            await create(router, previous_response_id=second.id)
        assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")
        assert first.id in caught.value.message
        assert (await api.retrieve(second.id)).id == second.id
        with pytest.raises(openai.BadRequestError, match="background"):
            await api.cancel(second.id)
        for query in ("limit=0", "limit=x", "order=up"):
            assert (await router.http.get(f"{PATH}/{second.id}/input_items?{query}")).status_code == 400
        assert (await router.http.get(f"{PATH}/{second.id}?stream=true")).json()["error"]["param"] == "stream"
        assert (await router.http.get(f"{PATH}/{second.id}/input_items?after=no")).status_code == 404


async def test_what_is_not_stored() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        response = await create(router, store=False, max_output_tokens=2)
        assert response.model_extra is not None
        assert response.model_extra["store"] is False
        for call in (router.openai.responses.retrieve(response.id), create(router, previous_response_id=response.id)):
            with pytest.raises(openai.NotFoundError):
                await call
        worker.go_on.clear()
        stream: Any = await router.openai.responses.create(model=MODEL, input="a", stream=True)
        begun = await anext(aiter(stream))
        await stream.close()
        await until(lambda: bool(worker.aborted))
        with pytest.raises(openai.NotFoundError):
            await router.openai.responses.retrieve(begun.response.id)


@pytest.mark.parametrize(
    ("options", "reason"), [({"response_store_bytes": 0}, "--response-store-bytes"), ({"processes": 2}, "--registry")]
)
async def test_a_router_without_a_store(options: dict[str, Any], reason: str) -> None:
    async with running_router(ScriptedWorker(), **options) as router:
        response = await create(router, max_output_tokens=2)
        assert response.model_extra is not None
        assert response.model_extra["store"] is False
        with pytest.raises(openai.BadRequestError, match=reason) as caught:
            await create(router, previous_response_id=response.id)
        assert caught.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError, match=reason):
            await router.openai.responses.retrieve(response.id)


async def test_tenants_see_their_own_responses(tmp_path: Path) -> None:
    keys = TestKeys(tmp_path)
    mine, yours, ours = keys.add("mine"), keys.add("yours"), keys.add("ours", cache_salt="shared")
    too = keys.add("too", cache_salt="shared")
    async with running_router(ScriptedWorker(), api_keys_file=str(keys.path)) as router:
        made: dict[str, str] = {}
        for key in (mine, ours):
            response = await router.http.post(PATH, json={"input": "a", "max_output_tokens": 2}, headers=bearer(key))
            made[key] = response.json()["id"]
        for key, owner, status in ((mine, mine, 200), (yours, mine, 404), (too, ours, 200), (mine, ours, 404)):
            response_id, headers = made[owner], bearer(key)
            body = {"input": "b", "max_output_tokens": 2, "previous_response_id": response_id}
            assert (await router.http.post(PATH, json=body, headers=headers)).status_code == status
            body = {"input": [{"type": "item_reference", "id": f"msg_{response_id[5:]}o0"}], "max_output_tokens": 2}
            assert (await router.http.post(PATH, json=body, headers=headers)).status_code == status
            for path in (response_id, f"{response_id}/input_items"):
                assert (await router.http.get(f"{PATH}/{path}", headers=headers)).status_code == status
            if status == 404:
                assert (await router.http.delete(f"{PATH}/{response_id}", headers=headers)).status_code == 404
        assert (await router.http.get(f"{PATH}/{made[mine]}")).status_code == 401
        assert (await router.http.delete(f"{PATH}/{made[mine]}", headers=bearer(mine))).json()["deleted"] is True


async def test_routers_share_a_redis_and_serve_without_it(tmp_path: Path) -> None:
    async with redis_server(tmp_path) as server:
        worker = ScriptedWorker()
        await worker.start()
        registry = open_registry(server.url)
        keeping = asyncio.create_task(registry.lease(member_of(worker), 60).keep())
        options: dict[str, Any] = {"registry": server.url}
        async with running_router(**options) as one, running_router(**options) as two:
            for router in (one, two):
                await wait_workers(router.http, 1, "ready")
            first = await create(one, max_output_tokens=12)
            second = await create(two, max_output_tokens=3, previous_response_id=first.id)
            assert (await one.openai.responses.retrieve(second.id)).id == second.id
            await server.kill()
            body = {"input": "a", "max_output_tokens": 2}
            response = await one.http.post(PATH, json=body)
            assert (response.status_code, response.headers["x-baton-stored"]) == (200, "false")
            assert (await events(two, max_output_tokens=2))[-1].type == "response.incomplete"
            response = await two.http.post(PATH, json={**body, "previous_response_id": second.id})
            assert response.status_code == 503
            assert "retry-after" in response.headers
            assert (await one.http.get(f"{PATH}/{first.id}")).status_code == 503
            await server.start()
            async with asyncio.timeout(20):
                while (await one.http.post(PATH, json=body)).headers["x-baton-stored"] == "false":
                    await asyncio.sleep(0.1)
            response = await two.http.post(PATH, json={**body, "previous_response_id": second.id})
            assert response.status_code in (404, 503)  # it was in Redis' memory alone
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        await registry.close()
        await worker.stop()


async def test_a_failed_stream() -> None:
    worker = ScriptedWorker()
    async with running_router(worker, failover_attempts=0, failover_timeout_s=0) as router:
        worker.go_on.clear()
        stream: Any = await router.openai.responses.create(model=MODEL, input="a", stream=True)
        received = [await anext(aiter(stream))]
        await worker.stop()
        received += [event async for event in stream]
        *_, error, failed = received
        assert (error.type, failed.type) == ("error", "response.failed")
        assert failed.response.status == "failed"
        assert failed.response.error.code == "server_error"
        assert failed.response.error.message == error.message
        with pytest.raises(openai.NotFoundError):
            await router.openai.responses.retrieve(failed.response.id)


async def test_a_response_cannot_be_resumed() -> None:
    async with running_router(ScriptedWorker()) as router:
        headers = {"x-baton-resumable": "true", "x-request-id": "a"}
        response = await router.http.post(PATH, json={"input": "a"}, headers=headers)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "x-baton-resumable")


async def test_what_a_conversation_has_counts_as_the_body_does() -> None:
    async with running_router(
        ScriptedWorker(), max_client_body_bytes_in_flight=60_000, max_body_bytes=60_000
    ) as router:
        thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a" * 40_000}]}
        previous = None
        for status in (200, 200, 429):
            body = {"input": [{"role": "user", "content": "a"}, thought], "max_output_tokens": 1}
            if previous is not None:
                body = {"input": "b", "max_output_tokens": 1, "previous_response_id": previous}
            if status == 429:
                body["input"] = [{"role": "user", "content": "a"}, thought]
            response = await router.http.post(PATH, json=body)
            assert response.status_code == status, response.text
            previous = response.json().get("id")
        assert (await create(router, max_output_tokens=1)).status == "incomplete"


async def test_more_logprobs_than_a_response_may_have() -> None:
    worker = ScriptedWorker()
    worker.max_model_len = 1 << 16
    async with running_router(worker) as router:
        with pytest.raises(openai.BadRequestError) as caught:
            await create(router, max_output_tokens=20_000, top_logprobs=20, stream=True)
        assert caught.value.param == "top_logprobs"
