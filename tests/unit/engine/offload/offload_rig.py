"""Engines whose weights are offloaded to a file, and the outputs of requests that run in them."""

import random
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.outputs import SampledToken
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE

SHARED = random.Random(1).choices(range(3, VOCAB_SIZE), k=40)  # beginning of most prompts


def config_of(model: Path, **options: object) -> EngineConfig:
    """Return a config in bfloat16, in which weights have layouts of our own."""
    given: dict[str, object] = {"dtype": "bfloat16", "kv_cache_memory_bytes": 1 << 20, "device": "cpu"}
    return EngineConfig(model=str(model), **(given | options))  # type: ignore[arg-type]


@contextmanager
def running(config: EngineConfig) -> Iterator[Engine]:
    with closing(Engine(config)) as engine:
        yield engine


def requests(count: int = 4, **sampling: object) -> list[Request]:
    """Return requests whose tokens and log-probabilities depend on every weight."""
    draw = random.Random(2)
    made = []
    for index in range(count):
        prompt = SHARED[: draw.randrange(len(SHARED))] + draw.choices(range(3, VOCAB_SIZE), k=draw.randrange(1, 30))
        options: dict[str, object] = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True, "logprobs": 3}
        options |= {"temperature": 1.0, "seed": index} if index % 2 else {}
        made.append(
            Request(RequestId(f"r{index}"), prompt, len(prompt), SamplingParams(**(options | sampling)))  # type: ignore[arg-type]
        )
    return made


def outputs(engine: Engine, made: Sequence[Request]) -> dict[RequestId, list[SampledToken]]:
    """Run requests to their ends, and return their tokens with log-probabilities."""
    found: dict[RequestId, list[SampledToken]] = {each.request_id: [] for each in made}
    for each in made:
        engine.add(each)
    while engine.has_work:
        for output in engine.run(engine.schedule()).outputs:
            found[output.request_id] += output.all_sampled
        engine.check_integrity()
    assert all(found.values())
    return found
