"""One engine in the tests' own process, as the reference for clusters."""

import random
from pathlib import Path

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
NUM_BATCHED_TOKENS = 48


class Colocated:
    """One engine that runs requests one by one."""

    def __init__(self, model: Path, kv_dtype: str = "int8") -> None:
        self._engine = Engine(
            EngineConfig(
                model=str(model),
                dtype="float32",
                kv_cache_dtype=kv_dtype,
                kv_cache_memory_bytes=16 << 20,
                max_num_batched_tokens=NUM_BATCHED_TOKENS,
                max_num_seqs=16,
                enable_prefix_caching=False,
            )
        )
        self.bytes_per_block = self._engine.layout.block_bytes
        self._known: dict[tuple[int, ...], list[int]] = {}  # continuations by prompt

    def greedy(self, prompt: list[int]) -> list[int]:
        """Return the greedy continuation, which is computed once."""
        key = tuple(prompt)
        if key not in self._known:
            self._known[key] = self._computed(prompt)
        return [*self._known[key]]

    def _computed(self, prompt: list[int]) -> list[int]:
        self._engine.add(Request(RequestId("one"), [*prompt], len(prompt), GREEDY))
        tokens = []
        while self._engine.has_work:
            outputs = self._engine.run(self._engine.schedule()).outputs
            tokens += [each.sampled.token_id for each in outputs if each.sampled is not None]
        return tokens


def random_prompts(seed: int, *lens: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB_SIZE) for _ in range(count)] for count in lens]
