"""Prompts with images, and engines that run them."""

from pathlib import Path

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.vision.image import Image
from tests.vision_checkpoints import prompt_of, random_image, random_text

NUM_TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
Prompt = tuple[list[int], tuple[Image, ...]]
PROMPTS = {
    "one image": prompt_of([random_text(7, 1), random_image(3, 5, 1), random_text(9, 2)]),
    "two images": prompt_of([random_image(2, 2, 2), random_text(3, 3), random_image(5, 3, 3), random_text(4, 4)]),
    "image last": prompt_of([random_text(20, 5), random_image(4, 4, 4)]),
    "text": prompt_of([random_text(40, 6)]),
    "smallest": prompt_of([random_image(1, 1, 5), random_text(1, 7)]),
}


def engine_of(model: Path, **options: object) -> Engine:
    """An engine of one rank with small blocks."""
    given = {"dtype": "float32", "num_threads": 1, "block_size": 4, "kv_cache_memory_bytes": 4 << 20} | options
    return Engine(EngineConfig(model=str(model), **given))  # type: ignore[arg-type]


def request_of(name: str, prompt: Prompt, sampling: SamplingParams = GREEDY, salt: str = "") -> Request:
    """A request for a prompt with images."""
    tokens, images = prompt
    return Request(RequestId(name), list(tokens), len(tokens), sampling, cache_salt=salt, images=images)


def run(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    """Run requests to their end and return the output tokens of each."""
    for request in requests:
        engine.add(request)
    outputs: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while engine.has_work:
        for output in engine.run(engine.schedule()).outputs:
            outputs[output.request_id] += output.token_ids
        engine.scheduler.check_integrity()
    return outputs
