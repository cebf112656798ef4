"""Requests that end each worker that runs them: the number of workers that they can end is bounded."""

import asyncio
from typing import Any

import grpc
import httpx
import openai
import pytest

from baton.protos import common_pb2, router_pb2, worker_pb2
from baton.protos.router_pb2_grpc import InferenceStub
from baton.protos.worker_pb2 import WORKER_ROLE_PREFILL
from baton.router.dispatch.retries import Losses
from baton.router.errors import RequestLost, WorkerLost
from tests.unit.router.dispatch.embedding_worker import EmbeddingWorker
from tests.unit.router.rigs.running_router import running_router
from tests.unit.router.rigs.scripted_worker import ScriptedWorker

DEADLY_SEED, SEED = 13, 9
BODY: dict[str, Any] = {"prompt": "The cat sat on the mat", "max_tokens": 12}
DEADLY = BODY | {"seed": DEADLY_SEED}
DEFAULT_ATTEMPTS = 3


class MortalWorker(ScriptedWorker):
    """A worker that dies of each request with `DEADLY_SEED`, after `num_tokens` of its output."""

    def __init__(self, worker_id: str, num_tokens: int = 0) -> None:
        super().__init__(worker_id)
        self.returns = False  # at the same address, with another incarnation
        self._num_tokens = num_tokens
        self._death: asyncio.Task[None] | None = None

    @property
    def is_dead(self) -> bool:
        return self._death is not None

    async def _generate(self, command: worker_pb2.GenerateCommand, outgoing: Any) -> None:
        if command.sampling.seed != DEADLY_SEED:
            await super()._generate(command, outgoing)
            return
        tokens, num_prompt = list(command.token_ids), command.num_prompt_tokens
        while len(tokens) - num_prompt < self._num_tokens:
            delta = self._step(command, tokens, is_first=False)
            outgoing.put_nowait(worker_pb2.WorkerMessage(deltas=[delta]))
        await asyncio.sleep(0.05)  # the output is sent first
        self._death = asyncio.create_task(self._die())

    async def _die(self) -> None:
        await self.stop()
        if self.returns:
            await self.start()


def mortal_workers(number: int, num_tokens: int = 0) -> list[MortalWorker]:
    return [MortalWorker(f"decode-{place}", num_tokens) for place in range(number)]


@pytest.mark.parametrize("attempts", [1, DEFAULT_ATTEMPTS])
@pytest.mark.parametrize("num_tokens", [0, 2])
async def test_a_request_ends_few_workers(attempts: int, num_tokens: int) -> None:
    workers = mortal_workers(attempts + 2, num_tokens)
    async with running_router(*workers, failover_attempts=attempts) as router:
        answer = await router.http.post("/v1/completions", json=DEADLY)
        assert answer.status_code == 500
        assert answer.headers["x-should-retry"] == "false"
        assert "retry-after" not in answer.headers
        message = answer.json()["error"]["message"]
        assert f"sent to {attempts + 1} workers in turn, and each of them was lost" in message
        assert "the request may be the cause" in message
        [survivor] = [worker for worker in workers if not worker.is_dead]
        assert not survivor.commands
        assert (await router.http.post("/v1/completions", json=BODY | {"seed": SEED})).status_code == 200


async def test_workers_that_return_are_not_ended_without_a_bound() -> None:
    [worker] = mortal_workers(1)
    worker.returns = True
    async with running_router(worker) as router:
        assert (await router.http.post("/v1/completions", json=DEADLY, timeout=60)).status_code == 500
        assert len(worker.commands) == 1 + DEFAULT_ATTEMPTS


async def test_clients_do_not_send_such_a_request_again() -> None:
    workers = mortal_workers(8)
    async with running_router(*workers, failover_attempts=1) as router:
        async with openai.AsyncOpenAI(
            base_url=f"{router.url}/v1", api_key="none", max_retries=2, http_client=httpx.AsyncClient(trust_env=False)
        ) as client:
            with pytest.raises(openai.InternalServerError, match="may be the cause"):
                await client.completions.create(model="bundled_model", **DEADLY)
        assert sum(worker.is_dead for worker in workers) == 2
        messages = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "seed": DEADLY_SEED}
        answer = await router.http.post("/v1/messages", json=messages)
        assert (answer.status_code, answer.headers.get("x-should-retry")) == (500, "false")  # for Anthropic's clients
        assert sum(worker.is_dead for worker in workers) == 4


async def test_over_grpc_and_in_a_stream() -> None:
    workers = mortal_workers(8)
    async with running_router(*workers, failover_attempts=1) as router:
        answer = await router.http.post("/v1/completions", json=DEADLY | {"stream": True})
        assert "may be the cause" in answer.text
        assert sum(worker.is_dead for worker in workers) == 2
        async with grpc.aio.insecure_channel(router.grpc_address) as channel:
            sampling = common_pb2.SamplingParams(seed=DEADLY_SEED, max_tokens=4)
            call = InferenceStub(channel).Generate(router_pb2.GenerateRequest(text="The cat", sampling=sampling))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await anext(aiter(call))
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert sum(worker.is_dead for worker in workers) == 4


async def test_later_attempts_name_one_prefill_worker() -> None:
    """Otherwise each of them would end its prefill worker and all alternates."""
    decoders = mortal_workers(3)
    prefillers = [ScriptedWorker(f"prefill-{place}", WORKER_ROLE_PREFILL) for place in range(3)]
    async with running_router(*decoders, *prefillers, failover_attempts=1, policy="round_robin") as router:
        assert (await router.http.post("/v1/completions", json=DEADLY)).status_code == 500
        first, second = [command for worker in decoders for command in worker.commands]
        assert all(command.HasField("prefill") for command in (first, second))
        assert {len(first.prefill_fallbacks), len(second.prefill_fallbacks)} == {2, 0}


class MortalEmbedder(EmbeddingWorker):
    """A worker whose calls for embeddings all break off."""

    async def Embed(self, request: Any, context: Any) -> Any:  # noqa: N802
        self.calls.append(request)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")
        yield worker_pb2.EmbedEvent()


async def test_inputs_that_end_workers() -> None:
    workers = [MortalEmbedder(f"prefill-{place}") for place in range(4)]
    async with running_router(*workers, failover_attempts=1) as router:
        answer = await router.http.post("/v1/embeddings", json={"input": [[5, 6]]})
        assert (answer.status_code, answer.headers["x-should-retry"]) == (500, "false")
        assert sum(len(worker.calls) for worker in workers) == 2


def test_losses_with_output_in_between_are_of_the_workers() -> None:
    lost, losses = WorkerLost("decode-0 was lost"), Losses()
    losses.note(10)
    assert losses.last_error(lost, 1) is lost  # a single loss says nothing about the request
    losses.note(10)
    assert isinstance(losses.last_error(lost, 2), RequestLost)
    assert losses.last_error(lost, 3) is lost  # another failure was a refusal
    losses.note(11)
    assert losses.last_error(lost, 3) is lost
