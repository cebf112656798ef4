"""Resumed requests, with workers that remember the output, none or a different one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from baton.protos import common_pb2, worker_pb2
from baton.protos.worker_pb2 import RecalledOutput, RequestDelta
from baton.router.auth.key_meter import KeyMeter
from baton.router.generation import CompletionDelta
from baton.router.openai.response import Usage
from baton.router.resumption.resumption import OutputTally
from baton.rpc.status import Conflict, code_number
from tests.unit.router.api_keys import TestKeys
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until, wait_workers
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

BODY: dict[str, Any] = {
    "prompt": "The cat sat on the mat",
    "max_tokens": 12,
    "stream": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
}
FIRST = {"x-request-id": "r-1", "x-baton-resumable": "true"}


def again(position: object, **headers: str) -> dict[str, str]:
    return {**FIRST, "x-baton-resume": f"r-1; tokens={position}", **headers}


def events_of(text: str) -> list[dict[str, Any]]:
    data = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [orjson.loads(each) for each in data]


async def tokens(router: RunningRouter, headers: dict[str, str]) -> tuple[list[int], dict[str, int]]:
    """Return the output of a stream and its usage."""
    answer = await router.http.post("/v1/completions", json=BODY, headers=headers)
    assert answer.status_code == 200, answer.text
    events = events_of(answer.text)
    usage = {name: number for name, number in events[-1]["usage"].items() if name != "prompt_tokens_details"}
    return [token for each in events for choice in each["choices"] for token in choice["token_ids"]], usage


def position_behind(token_ids: Sequence[int]) -> str:
    tally = OutputTally(1)
    tally.add(0, token_ids)
    return str(tally.position())


def remembered(command: worker_pb2.GenerateCommand, token_ids: Sequence[int], **changes: Any) -> RecalledOutput:
    fields = {"num_prompt_tokens": command.num_prompt_tokens, "seed": command.sampling.seed, **changes}
    return RecalledOutput(resume_key=command.resume_key, token_ids=token_ids, **fields)


async def resumed(router: RunningRouter, how: str) -> bool:
    return f'requests_resumed_total{{how="{how}"' in (await router.http.get("/metrics")).text


async def test_only_resumable_requests_are_remembered_and_have_ids() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        plain = await router.http.post("/v1/completions", json=BODY, headers={"x-request-id": "r-1"})
        assert "\nid: " not in f"\n{plain.text}"
        assert "x-baton-resumable" not in plain.headers
        resumable = await router.http.post("/v1/completions", json=BODY, headers=FIRST)
        assert resumable.headers["x-baton-resumable"] == "true"
        assert resumable.text.count("id: ") == resumable.text.count("data: ") - 2  # not usage and [DONE]
        await tokens(router, FIRST)
        first, second, third = worker.commands
        assert first.resume_key == b""
        assert second.resume_key == third.resume_key != b""
        assert second.sampling.seed == third.sampling.seed != first.sampling.seed


async def test_workers_without_recall_remember_nothing() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        expected, usage = await tokens(router, FIRST)
        for count in (0, 1, 5, 12):
            position = position_behind(expected[:count]) if count else 0
            assert await tokens(router, again(position)) == (expected[count:], usage)
        assert await resumed(router, "regenerated")
        assert not await resumed(router, "recalled")


async def test_a_remembered_output_is_not_generated_again() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        expected, usage = await tokens(router, FIRST)
        [command] = worker.commands
        worker.remembered = [remembered(command, expected[:7])]
        assert await tokens(router, again(position_behind(expected[:4]))) == (expected[4:], usage)
        assert list(worker.commands[-1].token_ids) == [*command.token_ids, *expected[:7]]
        assert worker.commands[-1].resume_key == command.resume_key
        worker.remembered = [remembered(command, expected, finish_reason=common_pb2.FINISH_REASON_LENGTH)]
        assert await tokens(router, again("4")) == (expected[4:], usage)  # without digest it is as good
        assert len(worker.commands) == 2  # all had been generated
        assert await resumed(router, "recalled")


async def test_more_than_a_worker_remembers_is_generated_again_and_compared() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        expected, usage = await tokens(router, FIRST)
        worker.remembered = [remembered(worker.commands[0], expected[:2])]
        assert await tokens(router, again(position_behind(expected[:6]))) == (expected[6:], usage)
        for position in (position_behind([*expected[:5], 1]), "6"):
            answer = await router.http.post("/v1/completions", json=BODY, headers=again(position))
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "resume_failed")
        assert await resumed(router, "failed")


@pytest.mark.parametrize("changes", [{"num_prompt_tokens": 3}, {"seed": 3}])
async def test_an_output_of_another_prompt_or_seed_does_not_count(changes: dict[str, int]) -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        expected, usage = await tokens(router, FIRST)
        worker.remembered = [remembered(worker.commands[0], [1, 2, 3], **changes)]
        assert await tokens(router, again(0)) == (expected, usage)


async def test_the_output_that_the_client_saw_is_chosen() -> None:
    one, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    async with running_router(one, other) as router:
        expected, usage = await tokens(router, FIRST)
        [command] = (*one.commands, *other.commands)
        one.remembered = [remembered(command, [*expected[:3], 1, 2, 3, 4])]  # of an attempt that went another way
        other.remembered = [remembered(command, expected[:5])]
        assert await tokens(router, again(position_behind(expected[:5]))) == (expected[5:], usage)


async def test_no_other_model_continues_a_remembered_output() -> None:
    old, new = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    new.fingerprint = "another"
    async with running_router(old, new) as router:
        expected, _ = await tokens(router, {**FIRST, "x-baton-decode": "decode-0"})
        old.remembered = [remembered(old.commands[0], expected[:5])]
        old.draining = True
        old.news()
        await wait_workers(router.http, 1, "draining")
        answer = await router.http.post("/v1/completions", json=BODY, headers=again(position_behind(expected[:5])))
        assert answer.status_code == 503
        assert not new.commands


async def test_a_stopped_worker_delays_no_request() -> None:
    hanging, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    hanging.may_recall.clear()
    pinned = {"x-baton-decode": "decode-1"}
    async with running_router(hanging, other) as router:
        expected, usage = await tokens(router, {**FIRST, **pinned})
        assert await tokens(router, again(position_behind(expected[:5]), **pinned)) == (expected[5:], usage)
        other.remembered = [remembered(other.commands[0], expected[:6])]
        assert await tokens(router, again(position_behind(expected[:5]), **pinned)) == (expected[5:], usage)
        assert len(other.commands[-1].token_ids) == other.commands[-1].num_prompt_tokens + 6


async def test_a_request_taken_over_by_another_router_is_not_retried() -> None:
    one, other = ScriptedWorker("decode-0"), ScriptedWorker("decode-1")
    error = common_pb2.RequestError(code=code_number(Conflict("")), message="taken over by another router")
    one.refusal = other.refusal = RequestDelta(
        token_ids=[300], finish_reason=common_pb2.FINISH_REASON_ERROR, error=error
    )
    async with running_router(one, other) as router:
        answer = await router.http.post("/v1/completions", json=BODY, headers=FIRST)
        assert answer.status_code == 409
        assert len(one.commands) + len(other.commands) == 1


async def test_a_resumable_stream_is_never_silent_for_long() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with (
        running_router(worker) as router,
        router.http.stream("POST", "/v1/completions", json=BODY, headers=FIRST) as response,
    ):
        lines = response.aiter_lines()
        while await anext(lines) != ": waiting":
            pass
        worker.go_on.set()
        assert [line async for line in lines if line.startswith("data:")][-1] == "data: [DONE]"


async def test_a_request_that_runs_is_cancelled_with_its_comments() -> None:
    worker = ScriptedWorker()
    worker.go_on.clear()
    async with running_router(worker) as router:
        async with router.http.stream("POST", "/v1/completions", json=BODY, headers=FIRST) as response:
            await anext(response.aiter_lines())
        await until(lambda: len(worker.aborted) == 1)


async def test_a_completion_that_begins_late_has_the_logprobs_of_its_prompt() -> None:
    body = {**BODY, "prompt": [BODY["prompt"], "A dog"], "n": 2, "echo": True, "logprobs": 1}
    async with running_router(ScriptedWorker()) as router:
        first = await router.http.post("/v1/completions", json=body, headers=FIRST)
        choices = [choice for event in events_of(first.text) for choice in event["choices"]]
        tally = OutputTally(4)
        for index, count in enumerate((12, 12, 3, 0)):
            output = [token for choice in choices if choice["index"] == index for token in choice["token_ids"]]
            tally.add(index, output[:count])
        second = await router.http.post("/v1/completions", json=body, headers=again(tally.position()))
        resumed_choices = [choice for event in events_of(second.text) for choice in event["choices"]]

        def logprobs(all_choices: list[dict[str, Any]]) -> list[float]:
            of_last = [choice["logprobs"]["token_logprobs"] for choice in all_choices if choice["index"] == 3]
            return [each for some in of_last for each in some]

        assert logprobs(resumed_choices) == logprobs(choices)


async def test_an_echo_comes_with_the_first_token_even_if_that_has_no_text_yet() -> None:
    worker = ScriptedWorker()
    body = {**BODY, "return_token_ids": False, "echo": True}
    async with running_router(worker) as router:
        text = events_of((await router.http.post("/v1/completions", json=body, headers=FIRST)).text)
        output = "".join(choice["text"] for event in text for choice in event["choices"])[len(body["prompt"]) :]
        held = {**body, "seed": worker.commands[0].sampling.seed, "stop": [f"{output}\0"]}
        worker.go_on.clear()
        async with router.http.stream("POST", "/v1/completions", json=held, headers=FIRST) as response:
            lines = response.aiter_lines()
            while not (line := await anext(lines)).startswith("data: "):
                event_id = line
            worker.go_on.set()
            assert event_id.startswith("id: 1:")
            assert orjson.loads(line.removeprefix("data: "))["choices"][0]["text"] == body["prompt"]
            rest = "\n".join([line async for line in lines])
        assert "".join(choice["text"] for event in events_of(rest) for choice in event["choices"]) == output


async def test_contradictory_headers_are_rejected() -> None:
    async with running_router(ScriptedWorker()) as router:
        for headers in ({"x-baton-resumable": "true"}, again("1,2:00000000"), again("x")):
            answer = await router.http.post("/v1/completions", json=BODY, headers=headers)
            assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")
        whole = {**BODY, "stream": False, "stream_options": None}
        answer = await router.http.post("/v1/completions", json=whole, headers=again("3:00000000"))
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-baton-resume")


def test_a_key_is_charged_for_each_token_once() -> None:
    first = Usage(10)
    assert first.uncharged() == 10
    first.add(CompletionDelta(0, token_ids=[1, 2, 3]), 1)
    assert first.uncharged() == 3
    second = Usage(10, num_seen=3)
    assert second.uncharged() == 0
    second.add(CompletionDelta(0, token_ids=[4, 5]), 1)
    assert second.uncharged() == 2
    assert second.body()["completion_tokens"] == 5
    assert second.body()["total_tokens"] == 15


@pytest.fixture
def charges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record all charges."""
    charged: list[int] = []
    monkeypatch.setattr(KeyMeter, "charge", lambda _, num_tokens: charged.append(num_tokens))
    return charged


async def test_recomputed_tokens_are_charged_again(tmp_path: Path, charges: list[int]) -> None:
    worker = ScriptedWorker()
    keys = TestKeys(tmp_path)
    secret = {"authorization": f"Bearer {keys.add('a', tokens_per_minute=10_000)}"}
    async with running_router(worker, api_keys_file=str(keys.path)) as router:
        expected, usage = await tokens(router, {**FIRST, **secret})
        [command] = worker.commands

        async def charged(position: str) -> int:
            charges.clear()
            answer = await router.http.post("/v1/completions", json=BODY, headers=again(position, **secret))
            assert answer.status_code in (200, 409)
            return sum(charges)

        behind_five = position_behind(expected[:5])
        assert await charged(behind_five) == usage["total_tokens"]
        most = usage["prompt_tokens"] + BODY["max_tokens"]
        assert most - 9 <= await charged("3:00000000") <= most, "of a client that makes its position up"
        assert await charged("999999999:00000000") == 0, "nothing is computed"
        worker.remembered = [remembered(command, expected[:7])]
        assert await charged(behind_five) == usage["completion_tokens"] - 5
        worker.remembered = [remembered(command, expected, finish_reason=common_pb2.FINISH_REASON_LENGTH)]
        assert await charged(position_behind(expected)) == 0


async def test_all_remembered_completions_are_recalled() -> None:
    worker = ScriptedWorker()
    async with running_router(worker) as router:
        body = {**BODY, "n": 3, "stream": False, "stream_options": None}
        first = await router.http.post("/v1/completions", json=body, headers=FIRST)
        choices = first.json()["choices"]
        commands = sorted(worker.commands, key=lambda command: command.resume_key)
        worker.remembered = [
            remembered(command, choice["token_ids"], finish_reason=common_pb2.FINISH_REASON_LENGTH)
            for command, choice in zip(commands, choices, strict=True)
        ]
        num_commands = len(worker.commands)
        second = await router.http.post("/v1/completions", json=body, headers=again(0))
        assert second.json()["choices"] == choices
        assert len(worker.commands) == num_commands
