"""A request with drafts has the tokens that it has without, wherever it is computed, and however it moves."""

import os
import signal
from pathlib import Path

import grpc
import httpx
import pytest

from baton.protos.worker_pb2 import DrainRequest, UndrainRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from benchmarks.server import served
from tests.integration.moves.speculation_rig import BODY, moved_requests, plain_output
from tests.integration.moves.test_stopped_worker import tokens_of
from tests.integration.workers_view import pid_of, wait_all_ready, workers

DRAFTS = '--speculative-config={"method": "ngram", "num_speculative_tokens": 6}'
FLAGS = ("--dtype=float32", "--max-num-batched-tokens=48", "--max-num-seqs=16", DRAFTS)


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return plain_output()


async def test_a_handover_and_another_worker_that_pulls_the_kv(tmp_path: Path, expected: list[int]) -> None:
    async with moved_requests(tmp_path, FLAGS, FLAGS, expected) as (prefill, first, _):
        load = await first.wait_idle()
        assert load.num_draft_tokens >= sum(load.accepted_by_position) > 20
        assert (await prefill.wait_idle()).num_drafts == 0


async def test_a_drained_and_a_killed_decode_worker(expected: list[int]) -> None:
    flags = ("--prefill", "1", "--decode", "2", "--dtype", "float32", "--num-threads", "1", DRAFTS)
    async with served("", *flags) as url, httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        for salt in ("drained", "killed"):
            await wait_all_ready(url)
            async with client.stream("POST", "/v1/completions", json={**BODY, "cache_salt": salt}) as response:
                tokens = tokens_of(response)
                seen = [await anext(tokens) for _ in range(40)]
                leaving = response.headers["x-baton-decode"]
                if salt == "killed":
                    os.kill(await pid_of(leaving, url), signal.SIGKILL)
                else:
                    addresses = {worker["worker_id"]: worker["address"] for worker in await workers(url)}
                    async with grpc.aio.insecure_channel(addresses[leaving]) as channel:
                        await WorkerStub(channel).Drain(DrainRequest(timeout_s=0.05))
                        seen += [token async for token in tokens]
                        await WorkerStub(channel).Undrain(UndrainRequest())
                seen += [token async for token in tokens]
            assert seen == expected, salt
        page = (await client.get("/metrics")).text
        assert "baton:spec_decode_num_accepted_tokens_total{" in page
        assert 'position="0"' in page


async def test_logprobs_of_accepted_tokens_reach_the_client(expected: list[int]) -> None:
    flags = ("--colocated", "1", "--dtype", "float32", "--num-threads", "1", DRAFTS)
    async with served("", *flags) as url, httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        body = {**BODY, "stream": False, "logprobs": 1}
        [choice] = (await client.post("/v1/completions", json=body)).json()["choices"]
        assert choice["token_ids"] == expected
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["logprobs"]["tokens"]) == len(expected)
        assert all(each <= 0 for each in choice["logprobs"]["token_logprobs"])
