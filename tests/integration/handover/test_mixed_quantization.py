"""KV between workers with differently quantized weights of one model: refused unless allowed, and then named."""

from pathlib import Path

import httpx
import pytest

from baton.engine.sampling.params import SamplingParams
from tests.integration.decode_client import decode_client
from tests.integration.router_process import MODEL, router_process
from tests.integration.worker_process import WorkerProcess, worker_processes

HEADER = "x-baton-mixed-quantization"
GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
ALLOW = "--allow-mixed-quantization"


async def completion(
    client: httpx.AsyncClient, prompt: list[int], plan: str, *, stream: bool = False
) -> httpx.Response:
    body = {"prompt": prompt, "max_tokens": 4, "stream": stream}
    return await client.post("/v1/completions", json=body, headers={"x-baton-plan": plan})


def flags(workers: list[WorkerProcess]) -> tuple[str, ...]:
    return "--port=0", "--grpc-port=0", "--workers=" + ",".join(worker.address for worker in workers)


async def test_responses_name_the_quantizations_that_computed_their_kv(tmp_path: Path) -> None:
    shapes = ("prefill", ALLOW, "--quantization=int4"), ("decode", ALLOW)
    first, second, third = ([*range(start, start + 70)] for start in (300, 500, 700))
    async with worker_processes(MODEL, tmp_path, *shapes) as workers:
        prefill, decode = workers
        described = [await each.describe() for each in workers]
        assert described[0].fingerprint != described[1].fingerprint
        assert described[0].pool.fingerprint == described[1].pool.fingerprint
        async with router_process(tmp_path, *flags(workers)) as router, router.client() as client:
            for prompt, stream in ((first, False), (second, True)):
                response = await completion(client, prompt, "remote", stream=stream)
                assert response.status_code == 200, response.text
                assert int(response.headers["x-baton-handed-over-tokens"]) > 0
                assert response.headers[HEADER] == "int4->bf16"
            cached = await completion(client, first, "local")
            assert int(cached.headers["x-baton-cached-tokens"]) >= 64
            assert cached.headers[HEADER] == "int4->bf16"
            assert HEADER not in (await completion(client, third, "local")).headers
        async with decode_client(decode) as client:
            longer = [*second, *third]  # the first of its blocks are in both caches, the next in none
            alone = await client.generate(third, GREEDY)
            assert alone.served_by.mixed_quantization == ""
            pulled = await client.submit(longer, GREEDY, prefix_source=await prefill.peer(), cache_salt="")
            await pulled.ended.wait()
            assert pulled.served_by.mixed_quantization == "int4->bf16"


async def test_a_pulled_prefix_is_named(tmp_path: Path) -> None:
    shapes = ("decode", ALLOW, "--quantization=int4"), ("decode", ALLOW)
    prompt = [*range(300, 400)]
    async with worker_processes(MODEL, tmp_path, *shapes) as (source, puller):
        async with decode_client(source) as client:
            assert (await client.generate(prompt, GREEDY)).served_by.mixed_quantization == ""
        async with decode_client(puller) as client:
            pulled = await client.submit(prompt, GREEDY, prefix_source=await source.peer())
            await pulled.ended.wait()
    assert pulled.served_by.prefix_pulled_tokens == 96
    assert pulled.served_by.mixed_quantization == "int4->bf16"


@pytest.mark.parametrize("allowing", [(), ("prefill",)])
async def test_without_the_flag_on_all_workers_nothing_is_handed_over(
    allowing: tuple[str, ...], tmp_path: Path
) -> None:
    prefill_flags = ("--quantization=int4", *((ALLOW,) if "prefill" in allowing else ()))
    async with worker_processes(MODEL, tmp_path, ("prefill", *prefill_flags), ("decode",)) as workers:
        prefill, decode = workers
        async with router_process(tmp_path, *flags(workers)) as router, router.client() as client:
            refused = await completion(client, [*range(300, 400)], "remote")
            assert refused.status_code == 400
            assert "quantizations of one model need --allow-mixed-quantization" in refused.text
            assert HEADER not in (await completion(client, [*range(300, 400)], "local")).headers
        async with decode_client(decode) as client:
            alone = await client.generate([*range(500, 600)], GREEDY, await prefill.peer())
            assert alone.served_by.prefill_worker == alone.served_by.decode_worker
            assert alone.served_by.mixed_quantization == ""
