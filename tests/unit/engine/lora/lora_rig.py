"""Engines with adapters, and the tokens of requests that run in them."""

import random
from collections.abc import Mapping
from pathlib import Path

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


def lora_engine(model: Path, **options: object) -> Engine:
    """Return an engine with adapters enabled; options: fields of its config."""
    given: dict[str, object] = {"dtype": "float32", "kv_cache_memory_bytes": 1 << 21, "enable_lora": True}
    return Engine(EngineConfig(model=str(model), device="cpu", **(given | options)))  # type: ignore[arg-type]


def with_adapters(model: Path, adapters: dict[str, Path], **options: object) -> Engine:
    """Return an engine that has loaded the adapters, by name."""
    engine = lora_engine(model, **options)
    for name, path in adapters.items():
        engine.adapters.load(name, path)
    return engine


def random_tokens(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(3, VOCAB_SIZE), k=count)


def request(
    name: str, prompt: list[int], adapter: str | None = None, sampling: SamplingParams = GREEDY, **fields: object
) -> Request:
    made = Request(RequestId(name), [*prompt], len(prompt), sampling, adapter=adapter)
    for field, value in fields.items():
        setattr(made, field, value)
    return made


def run(engine: Engine, *requests: Request) -> Mapping[str, list[int]]:
    """Add requests, run them to their ends, and return their output tokens by name."""
    for each in requests:
        engine.add(each)
    while engine.has_work:
        engine.run(engine.schedule())
        engine.check_integrity()
    return {each.request_id: each.token_ids[each.num_prompt_tokens :] for each in requests}
