"""A request with a grammar has the same tokens wherever it is computed, and however it moves."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from baton.deployment.local.ports import free_ports
from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.grammar.grammar import Grammar, GrammarKind
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.protos import common_pb2
from tests.integration.decode_client import decode_client
from tests.integration.worker_process import worker_processes
from tests.unit.engine.grammar_rig import steps

MODEL = Path(str(files("baton"))) / "bundled_model"
PROMPT = list(range(300, 400))
REGEX = "([a-z]{2,9} [0-9]{3}; ){16}end"
GRAMMAR = Grammar(GrammarKind.REGEX, REGEX)
SEED, MAX_TOKENS, FREQUENCY_PENALTY = 11, 400, 0.5
FLAGS = ("--dtype=float32", "--max-num-batched-tokens=48", "--max-num-seqs=16")


def sampling(seed: int = SEED, max_tokens: int = MAX_TOKENS) -> SamplingParams:
    return SamplingParams(
        temperature=1.0, seed=seed, max_tokens=max_tokens, frequency_penalty=FREQUENCY_PENALTY, grammar=GRAMMAR
    )


def generate_here(prompts: dict[int, list[int]]) -> dict[int, list[int]]:
    """Returns the outputs of some prompts, by their seeds, in an engine of this process."""
    engine = Engine(EngineConfig(model=str(MODEL), dtype="float32", num_threads=1, kv_cache_memory_bytes=64 << 20))
    requests = {
        seed: Request(RequestId(f"{seed}"), list(prompt), len(prompt), sampling(seed))
        for seed, prompt in prompts.items()
    }
    for request in requests.values():
        engine.add(request)
    for _ in steps(engine):
        pass
    assert {request.finish_reason for request in requests.values()} == {FinishReason.STOP}
    return {seed: request.token_ids[request.num_prompt_tokens :] for seed, request in requests.items()}


@pytest.fixture(scope="module")
def expected() -> list[int]:
    return generate_here({SEED: PROMPT})[SEED]


async def test_a_handover_and_a_local_prefill(tmp_path: Path, expected: list[int]) -> None:
    async with (
        worker_processes(MODEL, tmp_path, ("prefill", *FLAGS), ("decode", *FLAGS)) as (prefill, decode),
        decode_client(decode) as client,
    ):
        peer = await prefill.peer()
        handed_over = await client.generate(PROMPT, sampling(), peer)
        assert handed_over.served_by.handed_over_tokens == len(PROMPT)
        local = await client.submit(PROMPT, sampling(), cache_salt="another")
        await local.ended.wait()
        assert local.served_by.prefill_worker == local.served_by.decode_worker
        for generation in (handed_over, local):
            assert generation.token_ids == expected
            assert generation.finish_reason == common_pb2.FINISH_REASON_STOP
        refused = await client.generate(PROMPT, SamplingParams(grammar=Grammar(GrammarKind.EBNF, "root ::= a")), peer)
        assert refused.error is not None
        assert refused.error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert 'Rule "a" is not defined' in refused.error.message
        await prefill.wait_idle()
        await decode.wait_idle()


async def test_a_worker_reports_compiling_and_masks(tmp_path: Path) -> None:
    [port] = free_ports("127.0.0.1", 1)
    async with (
        worker_processes(MODEL, tmp_path, ("decode", *FLAGS, f"--metrics-port={port}")) as (worker,),
        decode_client(worker) as client,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        short = SamplingParams(max_tokens=4, grammar=Grammar(GrammarKind.REGEX, "[a-z]{9}"))
        for _ in range(3):
            await client.generate(PROMPT, short)
        page = (await http.get(f"http://127.0.0.1:{port}/metrics")).text
    values = {name: float(value) for name, value in re.findall(r"^baton:grammar_(\w+)_total{.*} (\S+)$", page, re.M)}
    assert (values["compiles"], values["cache_hits"], values["masks"]) == (1, 2, 12)
    assert values["compile_seconds"] > 0
    assert values["mask_seconds"] > 0
    assert values["late_masks"] >= 0


@pytest.mark.slow
async def test_all_completions_of_one_request_match(cluster_url: str) -> None:
    async with httpx.AsyncClient(base_url=cluster_url, timeout=120, trust_env=False) as client:
        answer = await client.post("/v1/completions", json={**body(), "stream": False, "n": 4, "logprobs": 2})
        choices = answer.json()["choices"]
    assert len({choice["text"] for choice in choices}) == 4
    for choice in choices:
        assert re.fullmatch(REGEX, choice["text"])
        assert choice["finish_reason"] == "stop"


def body() -> dict[str, Any]:
    return {
        "prompt": PROMPT, "max_tokens": MAX_TOKENS, "temperature": 1, "seed": SEED, "top_k": -1, "top_p": 1,
        "frequency_penalty": FREQUENCY_PENALTY, "repetition_penalty": 1, "stream": True, "return_token_ids": True,
        "structured_outputs": {"regex": REGEX},
    }  # fmt: skip
