"""Large stored responses delay no other request, and have bounds on their bytes and items."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from baton.router.responses import api, stored_api
from baton.router.responses.conversation import MAX_JSON_BYTES, MAX_PARTS
from tests.unit.router.rigs.running_router import RunningRouter, running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

PATH = "/v1/responses"
MIB = 1 << 20
OVERLAP_S = 0.2  # for which a call waits for another one


class Calls:
    """The calls of functions, which still do their work: the threads, and how many ran at once."""

    def __init__(self) -> None:
        self.threads: Counter[str] = Counter()
        self.most = 0
        self._num_running = 0
        self._lock = threading.Lock()
        self._overlap = threading.Event()

    def watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, with calls that wait for others to overlap."""
        return partial(self._call, function)

    def _call(self, function: Callable[..., Any], *arguments: object) -> object:
        name = threading.current_thread().name
        with self._lock:
            self.threads[name] += 1
            self._num_running += 1
            self.most = max(self.most, self._num_running)
            if self._num_running > 1:
                self._overlap.set()
        if name != threading.main_thread().name:
            self._overlap.wait(OVERLAP_S)
        try:
            return function(*arguments)
        finally:
            with self._lock:
                self._num_running -= 1


def thought(num_bytes: int) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "a" * num_bytes}]}


async def stored(router: RunningRouter, items: list[dict[str, Any]], status: int = 200, **fields: Any) -> Any:
    """Return the body of the response to these items and a question."""
    body = {"input": [*items, {"role": "user", "content": "a"}], "max_output_tokens": 1, **fields}
    response = await router.http.post(PATH, json=body, timeout=120)
    assert response.status_code == status, response.text
    return response.json()


async def test_large_conversations_are_read_one_at_a_time_like_large_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr(api, "read_conversation", calls.watched(api.read_conversation))
    async with running_router(ScriptedWorker()) as router:
        small, large = await stored(router, []), await stored(router, [thought(3 * MIB)])
        calls.threads.clear()
        await stored(router, [], previous_response_id=small["id"])
        assert calls.threads.total() == 1
        assert calls.threads.keys() <= {threading.main_thread().name, "bodies_0"}  # a thread if the turn was used up
        calls.threads.clear()
        continued = [stored(router, [], previous_response_id=large["id"], store=False) for _ in range(3)]
        referring = stored(router, [{"type": "item_reference", "id": f"rs_{large['id'][5:]}i0"}])
        await asyncio.gather(*continued, referring)
        assert calls.threads == {"bodies-long_0": 4}
        assert calls.most == 1


async def test_stored_responses_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    for name in ("decode", "read_responses"):
        monkeypatch.setattr(stored_api, name, calls.watched(getattr(stored_api, name)))
    async with running_router(ScriptedWorker()) as router:
        path = f"{PATH}/{(await stored(router, [thought(MIB)]))['id']}"
        reads = [router.http.get(path), router.http.get(f"{path}/input_items"), router.http.post(f"{path}/cancel")]
        responses = await asyncio.gather(*reads)
        assert [response.status_code for response in responses] == [200, 200, 400]
        assert calls.threads.total() == 3
        assert calls.most == 1


@pytest.mark.slow
async def test_a_conversation_of_too_many_items() -> None:
    async with running_router(ScriptedWorker()) as router:
        previous, num_turns = await stored(router, [{"type": "reasoning"}] * 8000), 1
        while num_turns * 8000 < MAX_PARTS - 8000:
            fields = {"previous_response_id": previous["id"]}
            previous, num_turns = await stored(router, [{"type": "reasoning"}] * 8000, **fields), num_turns + 1
        previous = await stored(router, [{"type": "reasoning"}] * 2000, previous_response_id=previous["id"])
        error = (await stored(router, [], 400, previous_response_id=previous["id"]))["error"]
        assert error["param"] == "previous_response_id"
        assert f"the limit is {MAX_PARTS} items" in error["message"]
        assert "begin a new one" in error["message"]
        listed = await router.http.get(f"{PATH}/{previous['id']}/input_items")
        assert (listed.status_code, listed.json()["error"]["param"]) == (400, "response_id")
        assert (await router.http.get(f"{PATH}/{previous['id']}")).status_code == 200


async def test_a_conversation_of_too_many_bytes_however_it_is_referred_to() -> None:
    async with running_router(ScriptedWorker()) as router:
        half = [thought(MAX_JSON_BYTES // 2)]
        first = await stored(router, half)
        second = await stored(router, half, previous_response_id=first["id"])
        error = (await stored(router, [], 400, previous_response_id=second["id"]))["error"]
        assert f"the limit is {MAX_JSON_BYTES} bytes" in error["message"]
        references = [{"type": "item_reference", "id": f"rs_{each['id'][5:]}i0"} for each in (first, second)]
        error = (await stored(router, references, 400))["error"]
        assert (error["param"], str(MAX_JSON_BYTES) in error["message"]) == ("input[1].id", True)
        error = (await stored(router, references[1:], 400, previous_response_id=first["id"]))["error"]
        assert (error["param"], str(MAX_JSON_BYTES) in error["message"]) == ("input[0].id", True)
        await stored(router, references[:1])


async def test_an_item_is_referred_to_once() -> None:
    async with running_router(ScriptedWorker()) as router:
        first = await stored(router, [thought(1000), thought(1000)])
        references = [{"type": "item_reference", "id": f"rs_{first['id'][5:]}i{place}"} for place in (0, 1)]
        await stored(router, references)
        error = (await stored(router, [*references, references[0]], 400))["error"]
        assert error["param"] == "input[2].id"
        assert f"Duplicate item found with id '{references[0]['id']}'" in error["message"]
