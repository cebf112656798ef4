"""`/v1/embeddings` of a real router and real workers, with the `openai` client."""

import asyncio
import base64
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from tokenizers import Tokenizer

from tests.embedding_models import EmbeddingOracle, Vector, add_pooling
from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_workers
from tests.integration.worker_process import WorkerProcess, worker_processes

ATOL = 2e-5
SIZE = 256
TEXTS = [f"The function of module {number} returns a list. " * (1 + number % 4) for number in range(40)]
FP32 = "--dtype=float32"
NUM_INPUTS = 120


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model with a pooling of the last token."""
    directory = tmp_path_factory.mktemp("embedding") / "model"
    shutil.copytree(MODEL, directory)
    return add_pooling(directory, "last", matryoshka_dimensions=[64, SIZE])


@pytest.fixture(scope="module")
def expected(model: Path) -> list[Vector]:
    """What transformers computes of TEXTS."""
    oracle = EmbeddingOracle(model, "last")
    return [oracle.embedding(token_ids) for token_ids in tokenized(model, TEXTS)]


def tokenized(model: Path, texts: list[str]) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    return [tokenizer.encode(text).ids for text in texts]


@dataclass
class Cluster:
    """Workers, a router and its clients."""

    workers: list[WorkerProcess]
    router: RouterProcess
    openai: openai.AsyncOpenAI
    http: httpx.AsyncClient

    async def embed(self, given: Any, **options: Any) -> list[Vector]:
        """Return embeddings through the `openai` client."""
        response = await self.openai.embeddings.create(model="model", input=given, **options)
        assert [each.index for each in response.data] == list(range(len(response.data)))
        return [np.array(each.embedding, np.float32) for each in response.data]

    async def wait_idle(self) -> None:
        """Wait until no worker has a request, and every block is free."""
        async with asyncio.timeout(60):
            await asyncio.gather(*(worker.wait_idle() for worker in self.workers))


@asynccontextmanager
async def cluster(model: Path, directory: Path, *workers: Any, flags: tuple[str, ...] = ()) -> AsyncIterator[Cluster]:
    async with worker_processes(model, directory, *workers) as processes:
        addresses = ",".join(worker.address for worker in processes)
        given = ("--port=0", f"--model={model}", f"--workers={addresses}", *flags)
        async with (
            router_process(directory, *given) as router,
            router.client() as http,
            openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
        ):
            await wait_workers(http, len(processes))
            yield Cluster(processes, router, client, http)


def assert_close(vectors: list[Vector], expected: list[Vector]) -> None:
    for vector, other in zip(vectors, expected, strict=True):
        np.testing.assert_allclose(vector, other, atol=ATOL, rtol=0)


async def test_prefill_workers_embed_without_a_decode_worker(
    model: Path, expected: list[Vector], tmp_path: Path
) -> None:
    tokens = tokenized(model, TEXTS)
    async with cluster(model, tmp_path, ("prefill", FP32), ("prefill", FP32)) as served:
        assert (await served.http.get("/ready")).status_code == 200
        assert_close(await served.embed(TEXTS), expected)
        loads = [(await worker.wait_idle()).num_prefilled_tokens for worker in served.workers]
        assert min(loads) > 0, "the inputs were not spread"
        assert_close(await served.embed(TEXTS, encoding_format="float"), expected)
        assert_close(await served.embed(tokens), expected)
        assert_close(await served.embed(tokens[3]), [expected[3]])
        assert_close(await served.embed(TEXTS[0]), [expected[0]])
        short = [vector[:64] / np.linalg.norm(vector[:64]) for vector in expected[:5]]
        assert_close(await served.embed(TEXTS[:5], dimensions=64), short)
        cut = await served.embed(TEXTS[3], extra_body={"truncate_prompt_tokens": len(tokens[0])})
        assert_close(cut, await served.embed([tokens[3][: len(tokens[0])]]))
        body = {"model": "model", "input": TEXTS[:2], "encoding_format": "base64"}
        raw = (await served.http.post("/v1/embeddings", json=body)).json()
        assert raw["object"] == "list"
        assert raw["usage"] == {"prompt_tokens": sum(map(len, tokens[:2])), "total_tokens": sum(map(len, tokens[:2]))}
        vector = np.frombuffer(base64.b64decode(raw["data"][1]["embedding"]), "<f4")
        assert_close([vector], expected[1:2])
        await check_refusals(served)
        metrics = (await served.http.get("/metrics")).text
        assert "baton:embedding_inputs_total" in metrics
        chat = await served.http.post("/v1/completions", json={"prompt": "a"})
        assert chat.status_code == 503
        await served.wait_idle()


async def check_refusals(served: Cluster) -> None:
    """Check requests that the model cannot serve."""
    for options, param, reason in (
        ({"input": "a", "dimensions": 65}, "dimensions", "allows only 64, 256"),
        ({"input": ["a", "b " * 9000]}, "input[1]", "maximum context length"),
        ({"input": []}, "input", "at least one input"),
        ({"input": ["a"] * 2049}, "input", "over the limit of 2048"),
        ({"input": [1, 100_000]}, "input", "token id outside"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "float"),
        ({"input": "a", "inputs": "b"}, "inputs", "Unrecognized"),
    ):
        response = await served.http.post("/v1/embeddings", json=options)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert reason in error["message"]
    hint = {"x-baton-prefill": "nobody"}
    assert (await served.http.post("/v1/embeddings", json={"input": "a"}, headers=hint)).status_code == 400
    with pytest.raises(openai.NotFoundError):
        await served.openai.embeddings.create(model="other", input="a")


@pytest.mark.slow
async def test_a_lost_worker_and_cancelled_requests(model: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    inputs = [rng.choices(range(300, 4000), k=rng.randint(100, 200)) for _ in range(NUM_INPUTS)]
    small = ("--max-num-batched-tokens=64", "--max-num-seqs=16", FP32)
    async with cluster(model, tmp_path, ("prefill", *small), ("prefill", *small)) as served:
        expected = await served.embed(inputs)
        done = (await served.workers[0].wait_idle()).num_prefilled_tokens
        assert 33 * NUM_INPUTS < done < 117 * NUM_INPUTS
        for delay_s in (0.1, 0.3):
            request = asyncio.ensure_future(served.embed(inputs, extra_body={"cache_salt": f"{delay_s}"}))
            await asyncio.sleep(delay_s)
            assert not request.done()
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)
        await served.wait_idle()
        done = (await served.workers[0].wait_idle()).num_prefilled_tokens
        request = asyncio.ensure_future(served.embed(inputs, extra_body={"cache_salt": "last"}))
        async for update in served.workers[0].updates():
            assert not request.done()
            if update.load.num_prefilled_tokens > done + 2000:
                break
        served.workers[0].child.kill()
        assert_close(await request, expected)
        metrics = (await served.http.get("/metrics")).text
        [failovers] = [line for line in metrics.splitlines() if line.startswith("baton:failovers_total")]
        assert float(failovers.rpartition(" ")[2]) > 0
        await served.workers[1].wait_idle()


@pytest.mark.slow
async def test_colocated_workers_embed_next_to_completions(model: Path, expected: list[Vector], tmp_path: Path) -> None:
    async with cluster(model, tmp_path, ("both", FP32)) as served:
        options = {"model": "model", "max_tokens": 40, "temperature": 0, "extra_body": {"ignore_eos": True}}

        async def complete(text: str) -> str:
            completion = await served.openai.completions.create(prompt=text, **options)  # type: ignore[call-overload]
            return str(completion.choices[0].text)

        alone = [await complete(text) for text in TEXTS[:4]]
        *outputs, first, second = await asyncio.gather(
            *map(complete, TEXTS[:4]), served.embed(TEXTS), served.embed(TEXTS, encoding_format="float")
        )
        assert outputs == alone
        assert_close(first, expected)
        assert_close(second, expected)
        await served.wait_idle()


async def test_a_model_without_pooling_says_so(tmp_path: Path) -> None:
    async with cluster(MODEL, tmp_path, ("both",)) as served:
        response = await served.http.post("/v1/embeddings", json={"input": "a"})
        assert response.status_code == 400
        assert "does not make embeddings" in response.json()["error"]["message"]
