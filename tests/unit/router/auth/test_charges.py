"""Charges for requests that end early, and for what resumed requests compute again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
import orjson
import pytest

from baton.protos import common_pb2
from baton.protos.open_inference_pb2_grpc import GRPCInferenceServiceStub
from baton.protos.worker_pb2 import RecalledOutput
from baton.router.auth.key_meter import KeyMeter
from baton.router.resumption.resumption import OutputTally
from tests.unit.router.api_keys import TestKeys, bearer
from tests.unit.router.kserve.test_kserve_grpc import infer_request
from tests.unit.router.rigs.running_router import RunningRouter, running_router, until
from tests.unit.router.rigs.scripted_worker import ScriptedWorker, hashed_token

COMPLETIONS = "/v1/completions"
PROMPT = [300, 301, 302, 303]
NUM_GENERATED = 8


class PausingWorker(ScriptedWorker):
    """A worker that pauses for good after `NUM_GENERATED` tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.script = self._next
        self._num_tokens = 0

    def _next(self, token_ids: Sequence[int], sampling: common_pb2.SamplingParams) -> int:
        self._num_tokens += 1
        if self._num_tokens == NUM_GENERATED:
            self.go_on.clear()
        return hashed_token(token_ids, sampling)


@pytest.fixture
def charges(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record all charges."""
    charged: list[int] = []
    monkeypatch.setattr(KeyMeter, "charge", lambda _, num_tokens: charged.append(num_tokens))
    return charged


@pytest.fixture
def keys(tmp_path: Path) -> TestKeys:
    return TestKeys(tmp_path)


def add_key(keys: TestKeys) -> dict[str, str]:
    """Add a key, and return the headers with it."""
    return bearer(keys.add("a", tokens_per_minute=10_000))


async def until_idle(router: RunningRouter) -> None:
    while (await router.http.get("/workers")).json()["router"]["inflight"]:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("disconnects", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_output_of_responses_that_end_early(
    disconnects: bool, stream: bool, keys: TestKeys, charges: list[int]
) -> None:
    headers = add_key(keys) | ({} if disconnects else {"x-baton-timeout": "1"})
    body = {"prompt": PROMPT, "max_tokens": 100, "stream": stream}
    async with running_router(PausingWorker(), api_keys_file=str(keys.path)) as router:
        if disconnects:
            with pytest.raises(httpx.ReadTimeout):
                await router.http.post(COMPLETIONS, json=body, headers=headers, timeout=1.0)
        else:
            answer = await router.http.post(COMPLETIONS, json=body, headers=headers)
            assert stream or answer.status_code == 504
        await until_idle(router)
        assert sum(charges) == len(PROMPT) + NUM_GENERATED


@pytest.mark.parametrize("disconnects", [False, True])
async def test_output_of_inferences_that_end_early(disconnects: bool, keys: TestKeys, charges: list[int]) -> None:
    metadata = tuple(add_key(keys).items())
    request = infer_request()
    if not disconnects:
        request.parameters["timeout"].int64_param = 1_000_000
    request.raw_input_contents.pop()  # the options, which end the output early
    request.inputs.pop()
    request.parameters["max_tokens"].int64_param = 100
    async with (
        running_router(PausingWorker(), api_keys_file=str(keys.path)) as router,
        grpc.aio.insecure_channel(router.grpc_address) as channel,
    ):
        call = GRPCInferenceServiceStub(channel).ModelInfer(
            request, metadata=metadata, timeout=1.0 if disconnects else None
        )
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: len(charges) == 2)
        assert charges[1] == NUM_GENERATED


RESUMABLE: dict[str, Any] = {"prompt": PROMPT, "n": 2, "max_tokens": 12, "stream": True, "return_token_ids": True}
FIRST = {"x-request-id": "r-1", "x-baton-resumable": "true"}


async def test_output_that_is_held_for_a_false_position(keys: TestKeys, charges: list[int]) -> None:
    worker = ScriptedWorker()
    headers = add_key(keys) | FIRST
    async with running_router(worker, api_keys_file=str(keys.path)) as router:

        async def charged(position: str) -> int:
            charges.clear()
            resume = headers | {"x-baton-resume": f"r-1; tokens={position}"}
            answer = await router.http.post(COMPLETIONS, json=RESUMABLE, headers=resume)
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "resume_failed")
            return sum(charges)

        assert await charged("0,12:00000000") == len(PROMPT) + 12 + 12
        num_commands = len(worker.commands)
        assert await charged("0,13:00000000") == 0
        assert len(worker.commands) == num_commands, "it cannot be true"


async def test_a_prompt_that_is_computed_again_for_its_logprobs(keys: TestKeys, charges: list[int]) -> None:
    worker = ScriptedWorker()
    headers = add_key(keys) | FIRST
    body = RESUMABLE | {"echo": True, "logprobs": 1}
    async with running_router(worker, api_keys_file=str(keys.path)) as router:
        first = await router.http.post(COMPLETIONS, json=body, headers=headers)
        assert sum(charges) == len(PROMPT) + 12 + 12
        lines = [line.removeprefix("data: ") for line in first.text.splitlines() if line.startswith("data: {")]
        choices = [choice for line in lines for choice in orjson.loads(line)["choices"]]
        output = [token for choice in choices if choice["index"] == 1 for token in choice["token_ids"]]
        command = next(each for each in worker.commands if not each.sampling.HasField("prompt_logprobs"))
        seed = command.sampling.seed
        worker.remembered = [
            RecalledOutput(
                resume_key=command.resume_key,
                token_ids=output,
                num_prompt_tokens=len(PROMPT),
                seed=seed,
            )
        ]
        tally = OutputTally(2)
        tally.add(1, output[:1])
        charges.clear()
        resume = headers | {"x-baton-resume": f"r-1; tokens={tally.position()}"}
        second = await router.http.post(COMPLETIONS, json=body, headers=resume)
        assert second.status_code == 200
        assert sum(charges) == len(PROMPT) + 12 + 11
