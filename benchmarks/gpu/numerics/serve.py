"""`baton serve` on the device, over HTTP, compared with one engine: prefill, handover and decode in separate processes.

The prompts are answered twice. In the second round, a decode worker is killed while it decodes. Then a JSON schema is
enforced.
"""

import asyncio
import json
import os
import signal
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx

from baton.extras import XGRAMMAR
from benchmarks.gpu.engine_session import Answer, EngineSession, greedy, random_prompts, start_engine
from benchmarks.gpu.numerics.answers import compare_answers
from benchmarks.gpu.stage import Record, Setting
from benchmarks.server import served

BUNDLED_MODEL = Path(str(files("baton") / "bundled_model"))
PROMPT_LENS = (1, 15, 16, 17, 40, 100, 256, 400) * 3
NUM_TOKENS = {False: (64, 512), True: (8, 64)}  # of an answer without and with a kill
NUM_TEXTS = 8  # that match a schema
TIMEOUT_S = 60.0
KV_BYTES = 64 << 20
GREEDY = {"temperature": 0.0, "repetition_penalty": 1.0}  # the checkpoint's default penalty is another
KILLED = "decode-0"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"enum": ["Ely", "Bath"]}, "population": {"type": "integer", "minimum": 1, "maximum": 9999}},
    "required": ["name", "population"],
    "additionalProperties": False,
}
DIRECT = ("nixl", "nccl")  # transports between the memories of GPUs


async def answers(client: httpx.AsyncClient, prompts: list[list[int]], num_tokens: int) -> dict[str, Answer]:
    """Return the tokens of all prompts, sent concurrently."""

    async def one(prompt: list[int]) -> Answer:
        body = {"prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True, "return_token_ids": True, **GREEDY}
        response = await client.post("/v1/completions", json=body)
        if response.status_code != httpx.codes.OK:
            raise RuntimeError(f"status {response.status_code}: {response.text}")
        return Answer(response.json()["choices"][0]["token_ids"])

    found = await asyncio.gather(*map(one, prompts))
    return {str(index): answer for index, answer in enumerate(found)}


async def kill(client: httpx.AsyncClient, name: str) -> None:
    """Kill a worker's process as soon as the worker has a running request. Raises TimeoutError if it has none."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            view: dict[str, Any] = (await client.get("/workers")).json()
            if any(each["load"]["num_running"] for each in view["workers"] if each["worker_id"] == name):
                break
            await asyncio.sleep(0.005)
    [pid] = [each["pid"] for each in view["processes"] if each["name"] == name]
    os.kill(int(pid), signal.SIGKILL)


def check_transports(record: Record, workers: list[dict[str, Any]], device: str) -> None:
    """Add a finding on the transports over which the decode workers have read KV."""
    choices = {choice for worker in workers for choice in worker["peer_transports"].values()}
    is_right = bool(choices) and (device == "cpu" or all(choice.startswith(DIRECT) for choice in choices))
    record.find("transports", is_right, "; ".join(sorted(choices)) or "no KV was read")


async def check_grammar(record: Record, client: httpx.AsyncClient) -> None:
    """Add a finding on sampled answers that must match a schema."""

    async def one(seed: int) -> str:
        message = {"role": "user", "content": "Describe a town."}
        schema = {"type": "json_schema", "json_schema": {"name": "town", "schema": SCHEMA}}
        body = {"messages": [message], "seed": seed, "temperature": 1.0, "max_tokens": 200, "response_format": schema}
        response = await client.post("/v1/chat/completions", json=body)
        response.raise_for_status()
        return str(response.json()["choices"][0]["message"]["content"])

    texts = await asyncio.gather(*map(one, range(NUM_TEXTS)))
    num_matching = sum(set(json.loads(text)) == set(SCHEMA["required"]) for text in texts)
    record.find(
        "a JSON schema", num_matching == NUM_TEXTS, f"{num_matching} of {NUM_TEXTS} match, such as {texts[0]!r}"
    )


async def check(record: Record, setting: Setting, expected: list[dict[str, Answer]], prompts: list[list[int]]) -> None:
    """Compare the answers of a cluster of one prefill and two decode workers."""
    flags = ["--prefill", "1", "--decode", "2", "--device", str(setting.device), "--dtype", setting.dtype_name]
    async with (
        served("", *flags, "--kv-cache-memory-bytes", str(KV_BYTES)) as url,
        httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, trust_env=False) as client,
    ):
        short, long = NUM_TOKENS[setting.is_quick]
        compare_answers(record, "handed over", await answers(client, prompts, short), expected[0])
        check_transports(record, (await client.get("/workers")).json()["workers"], setting.device.type)
        answered, _ = await asyncio.gather(answers(client, prompts, long), kill(client, KILLED))
        compare_answers(record, "a decode worker killed", answered, expected[1])
        if XGRAMMAR.is_installed:
            await check_grammar(record, client)


def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    engine = start_engine(BUNDLED_MODEL, setting, kv_cache_memory_bytes=KV_BYTES, max_model_len=1024)
    prompts = random_prompts(PROMPT_LENS, engine.model_config.vocab_size)
    expected = []
    for num_tokens in NUM_TOKENS[setting.is_quick]:
        alone = EngineSession(engine).generate(prompts, greedy(num_tokens, logprobs=2))
        expected.append({str(index): answer for index, answer in enumerate(alone)})
    engine.close()
    asyncio.run(check(record, setting, expected, prompts))
