"""Chat requests with images: transformers' tokens after a handover, from the cache, and on the next worker."""

import base64
import io
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from PIL import Image as Pillow

from baton.engine.sampling.params import SamplingParams
from baton.engine.vision.image import Image
from baton.protos import worker_pb2
from baton.router.images.decoding import resized_image
from baton.router.images.limits import ImageLimits
from baton.router.images.processor import ProcessorConfig
from baton.router.images.source import ImageSource
from tests.integration.clients.resuming_client import CHAT
from tests.integration.decode_client import decode_client
from tests.integration.router_process import router_process, wait_workers
from tests.integration.worker_process import WorkerProcess, worker_processes
from tests.vision_checkpoints import MAX_PIXELS, VisionOracle, make_served_vision_model, random_image

pytestmark = pytest.mark.asyncio(loop_scope="module")
LENGTH = 24
GREEDY = SamplingParams(temperature=0, max_tokens=LENGTH, ignore_eos=True)
FLAGS = ("--dtype=float32", "--max-num-batched-tokens=24", "--max-num-seqs=8")


class Cluster:
    """A router with a prefill worker and two decode workers."""

    def __init__(
        self, client: httpx.AsyncClient, workers: list[WorkerProcess], oracle: VisionOracle, model: Path
    ) -> None:
        self.client = client
        self.model = model
        self.workers = workers
        self.oracle = oracle

    async def chat(self, *parts: str | bytes, **options: Any) -> httpx.Response:
        """Send a message of texts and images, each the bytes of a file."""
        return await self.client.post(CHAT, json=body(*parts, **options))

    def expected(self, tokens: list[int], *files: bytes) -> list[int]:
        """The oracle's continuation of a prompt that has these images."""
        assert self.oracle.config.vision is not None
        placeholder, images, start = self.oracle.config.vision.placeholder_id, list[Image](), 0
        limits, processor = ImageLimits(9, 1 << 20, 1 << 20), ProcessorConfig(28, 3136, MAX_PIXELS)
        for file in files:
            start = tokens.index(placeholder, start)
            images.append(resized_image(file, ImageSource("", ""), limits, processor).at(start))
            start = images[-1].end
        assert tokens.count(placeholder) == sum(image.num_tokens for image in images)
        return self.oracle.greedy(tokens, images, LENGTH)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    directory = tmp_path_factory.mktemp("images")
    model = make_served_vision_model(directory / "model")
    roles = (("prefill", *FLAGS), ("decode", *FLAGS), ("decode", *FLAGS))
    async with worker_processes(model, directory, *roles) as workers:  # type: ignore[arg-type]
        addresses = ",".join(worker.address for worker in workers)
        flags = (f"--model={model}", "--port=0", f"--workers={addresses}", "--local-prefill-below=0")
        async with router_process(directory, *flags) as router, router.client() as client:
            await wait_workers(client, len(workers))
            yield Cluster(client, workers, VisionOracle(model), model)


def picture(width: int, height: int, seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    file = io.BytesIO()
    Pillow.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def part(given: str | bytes) -> dict[str, Any]:
    if isinstance(given, str):
        return {"type": "text", "text": given}
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(given).decode()}"}}


def body(*parts: str | bytes, **options: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": list(map(part, parts))}]
    fixed = {"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True, "return_token_ids": True}
    return {"messages": messages, **fixed, **options}


async def test_a_handed_over_image_gives_the_oracles_tokens(cluster: Cluster) -> None:
    outputs = []
    for files in ([picture(150, 90, 1)], [picture(150, 90, 2)], [picture(60, 200, 3), picture(80, 80, 4)]):
        response = await cluster.chat("What is in ", *files, "? Say it in one word.")
        assert response.status_code == 200, response.text
        found = response.json()
        prompt, tokens = found["prompt_token_ids"], found["choices"][0]["token_ids"]
        assert tokens == cluster.expected(prompt, *files)
        assert int(response.headers["x-baton-handed-over-tokens"]) > 0
        assert found["usage"]["prompt_tokens"] == len(prompt)
        outputs.append(tokens)
    assert outputs[0] != outputs[1]


async def test_only_the_same_image_is_found_in_the_cache(cluster: Cluster) -> None:
    first, other = picture(250, 140, 5), picture(250, 140, 6)
    responses = [await cluster.chat("Look at this: ", file, " and describe it.") for file in (first, first, other)]
    outputs = [response.json()["choices"][0]["token_ids"] for response in responses]
    cached = [int(response.headers["x-baton-cached-tokens"]) for response in responses]
    assert outputs[0] == outputs[1] != outputs[2]
    assert cached[1] >= 48 > cached[2]
    assert outputs[2] == cluster.expected(responses[2].json()["prompt_token_ids"], other)


def prompt_with(cluster: Cluster, seed: int) -> tuple[list[int], Image]:
    """Tokens with an image, and the image."""
    vision = cluster.oracle.config.vision
    assert vision is not None
    image = random_image(4, 5, seed, start=20)
    return [*range(100, 120), *[vision.placeholder_id] * image.num_tokens, *range(200, 230)], image


async def test_the_kv_of_an_image_is_pulled_from_another_worker(cluster: Cluster) -> None:
    tokens, image = prompt_with(cluster, 11)
    expected = cluster.oracle.greedy(tokens, [image], LENGTH)
    _, first, second = cluster.workers
    async with decode_client(first) as here, decode_client(second) as there:
        computed = await here.submit(tokens, GREEDY, images=[image])
        await computed.ended.wait()
        pulled = await there.submit(tokens, GREEDY, prefix_source=await first.peer(), images=[image])
        await pulled.ended.wait()
    assert computed.token_ids == pulled.token_ids == expected
    assert pulled.served_by.prefix_pulled_tokens > image.end


async def test_a_decode_worker_computes_an_image_if_its_prefill_worker_is_gone(cluster: Cluster) -> None:
    tokens, image = prompt_with(cluster, 12)
    gone = worker_pb2.PeerWorker(worker_id="gone", address="127.0.0.1:1", incarnation="gone")
    async with decode_client(cluster.workers[1]) as client:
        generation = await client.submit(tokens, GREEDY, prefill=gone, images=[image])
        await generation.ended.wait()
    assert generation.token_ids == cluster.oracle.greedy(tokens, [image], LENGTH)


async def test_images_that_do_not_fit_their_tokens_are_refused(cluster: Cluster) -> None:
    tokens, image = prompt_with(cluster, 13)
    async with decode_client(cluster.workers[1]) as client:
        generation = await client.submit(tokens, GREEDY, images=[replace(image, start=21)])
        await generation.ended.wait()
    assert generation.error is not None
    assert "not all of them are the placeholder" in generation.error.message


async def test_a_pinned_image_serves_the_chats_that_begin_with_it(cluster: Cluster) -> None:
    file, other = picture(250, 140, 21), picture(250, 140, 22)
    prefix = body("Look at this: ", file, " It is the plan of the house, with all of its rooms and doors. ")["messages"]
    made = await cluster.client.post("/v1/cache/pins", json={"messages": prefix, "id": "plan"})
    assert made.status_code == 200, made.text
    assert made.json()["tokens"] >= 48
    follow_up = [*prefix, {"role": "assistant", "content": "Yes."}, {"role": "user", "content": "Where is the door?"}]
    there = {"x-baton-prefill": made.json()["workers"][0]}
    fixed = {key: value for key, value in body("").items() if key != "messages"}
    answer = await cluster.client.post(CHAT, json={"messages": follow_up, **fixed}, headers=there)
    assert int(answer.headers["x-baton-cached-tokens"]) >= made.json()["tokens"]
    found = answer.json()
    assert found["choices"][0]["token_ids"] == cluster.expected(found["prompt_token_ids"], file)
    different = [{"role": "user", "content": [part("Look at this: "), part(other)]}]
    answer = await cluster.client.post(CHAT, json={"messages": different, **fixed}, headers=there)
    assert int(answer.headers["x-baton-cached-tokens"]) < 48
    gone = await cluster.client.delete("/v1/cache/pins/plan")
    assert gone.json()["deleted"]
    bad = await cluster.client.post("/v1/cache/pins", json={"messages": body("", b"nothing")["messages"]})
    assert bad.status_code == 400
    assert "messages[0].content[1].image_url cannot be decoded" in bad.json()["error"]["message"]


@pytest.mark.slow
async def test_an_image_of_a_file_is_pinned_on_workers_that_come_later(cluster: Cluster, tmp_path: Path) -> None:
    """A second router has --pin-prefix; the prefill worker that joins then is sent the image, too."""
    file, model = picture(250, 140, 23), cluster.model
    messages = body("Look at this: ", file, " It is the plan of the house, with all of its rooms. ")["messages"]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"messages": messages}))
    async with worker_processes(model, tmp_path, ("both", *FLAGS), ("both", *FLAGS)) as (first, second):
        flags = (f"--model={model}", "--port=0", f"--pin-prefix={path}")
        workers = f"--workers={first.address},{second.address}"
        async with router_process(tmp_path, *flags, workers) as router, router.client() as client:
            await wait_workers(client, 2)
            for worker in (first, second):
                async for update in worker.updates():
                    if update.load.num_pins:
                        break
                there = {"x-baton-decode": (await worker.describe()).worker_id, "x-baton-plan": "local"}
                answer = await client.post(CHAT, json={"messages": messages, "max_tokens": 2}, headers=there)
                assert int(answer.headers["x-baton-cached-tokens"]) >= 48


async def test_tokenize_counts_placeholders(cluster: Cluster) -> None:
    messages = body("What is ", picture(150, 90, 1))["messages"]
    tokens = (await cluster.client.post("/tokenize", json={"messages": messages})).json()["tokens"]
    assert cluster.oracle.config.vision is not None
    assert tokens.count(cluster.oracle.config.vision.placeholder_id) == 5 * 3


async def test_other_apis_give_the_same_text(cluster: Cluster) -> None:
    file = picture(90, 90, 8)
    data = base64.b64encode(file).decode()
    chat = (await cluster.chat("What is ", file)).json()
    fixed = {"temperature": 0, "ignore_eos": True}
    source = {"type": "base64", "media_type": "image/png", "data": data}
    content: list[dict[str, Any]] = [{"type": "text", "text": "What is "}, {"type": "image", "source": source}]
    message = {"messages": [{"role": "user", "content": content}], "max_tokens": LENGTH, **fixed}
    anthropic = (await cluster.client.post("/v1/messages", json=message)).json()
    parts = [
        {"type": "input_text", "text": "What is "},
        {"type": "input_image", "image_url": f"data:image/png;base64,{data}"},
    ]
    items = {"input": [{"role": "user", "content": parts}], "max_output_tokens": LENGTH, **fixed}
    response = (await cluster.client.post("/v1/responses", json=items)).json()
    text = chat["choices"][0]["message"]["content"]
    assert anthropic["content"] == [{"type": "text", "text": text}]
    assert response["output"][0]["content"][0]["text"] == text
    assert anthropic["usage"]["input_tokens"] + anthropic["usage"].get("cache_read_input_tokens", 0) > 9


async def test_bad_images_are_refused(cluster: Cluster) -> None:
    for parts, options, message in (
        (("What?", b"nothing"), {}, "messages[0].content[1].image_url cannot be decoded"),
        ((*[picture(60, 60, 1)] * 9,), {}, "the messages have 9 images, over the limit of 8"),
        (("tick tock " * 400, b"nothing"), {}, "maximum context length is 1024"),  # images are read last
        (("<|image_pad|>", picture(60, 60, 1)), {}, "the prompt has 2 placeholders for 1 images"),
    ):
        response = await cluster.chat(*parts, **options)
        assert response.status_code == 400
        assert message in response.json()["error"]["message"]
    unknown = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]
    response = await cluster.client.post(CHAT, json={"messages": unknown})
    assert response.status_code == 400
    assert "only text and image_url are supported" in response.json()["error"]["message"]
