"""The handlers of the paths, and headers that every response has."""

import pytest

from baton.protos.worker_pb2 import GenerateCommand
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


async def test_all_paths_are_described() -> None:
    async with running_router(ScriptedWorker()) as router:
        schema = (await router.http.get("/openapi.json")).json()
        assert {CHAT, "/v1/completions", "/tokenize", "/detokenize", "/v1/models", "/ready"} <= set(schema["paths"])
        reference = schema["paths"][CHAT]["post"]["requestBody"]["content"]["application/json"]["schema"]["$ref"]
        chat = schema["components"]["schemas"][reference.rsplit("/", 1)[-1]]
        assert chat["required"] == ["messages"]
        assert chat["properties"]["messages"]["type"] == "array"


async def test_the_description_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_router(ScriptedWorker()) as router:
        first = await router.http.get("/openapi.json")
        monkeypatch.setattr("baton.router.http.app.json", None)
        assert (await router.http.get("/openapi.json")).content == first.content


async def test_every_answer_has_the_requests_id() -> None:
    async with running_router(ScriptedWorker()) as router:
        for path in ("/health", "/nothing"):
            answer = await router.http.get(path, headers={"x-request-id": "mine"})
            assert answer.headers["x-request-id"] == "mine"
        for body in (BODY, {**BODY, "stream": True}, {**BODY, "n": 0}):
            answer = await router.http.post(CHAT, json=body, headers={"x-request-id": "mine"})
            assert answer.headers["x-request-id"] == "mine"


async def test_a_path_that_takes_bodies_has_no_other_method() -> None:
    async with running_router(ScriptedWorker()) as router:
        answer = await router.http.put(CHAT, json=BODY)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_request_is_pinned_by_its_headers() -> None:
    workers = [ScriptedWorker("decode-0"), ScriptedWorker("decode-1")]
    async with running_router(*workers) as router:
        for place in (1, 0, 1, 1):
            answer = await router.http.post(CHAT, json=BODY, headers={"x-baton-decode": f"decode-{place}"})
            assert answer.headers["x-baton-decode"] == f"decode-{place}"
        assert [len(worker.commands) for worker in workers] == [1, 3]
        for name, value in (("x-baton-plan", "both"), ("x-baton-timeout", "soon")):
            refused = await router.http.post(CHAT, json=BODY, headers={name: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


async def test_messages_in_parts_make_the_same_prompt() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        contents = (["a", "b"], "a\nb", [{"type": "text", "text": "a\nb"}], parts)
        for content in contents:
            messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
            answer = await router.http.post(CHAT, json={**BODY, "messages": messages})
            assert answer.status_code == 200
        first, *others = [tokens(command) for command in worker.commands]
        assert others[:2] == [first, first]
        assert others[2] != first


def tokens(command: GenerateCommand) -> list[int]:
    return list(command.token_ids)
