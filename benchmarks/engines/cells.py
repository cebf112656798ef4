"""What is asked of the engines."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engines.checkpoint import DENSE, MOE, Shape
from benchmarks.engines.drivers.driver import Setting

NUM_OUTPUT_TOKENS = 64
PROMPT_LENS = (128, 512, 2048)
CONCURRENCY = (1, 8, 32)
FIRST_TOKEN = 300  # ids below are special, or bytes
LONG_WAVE = 8192  # prompt tokens at a time, from which on each client asks once


@dataclass(frozen=True, slots=True)
class Series:
    """A model, how its numbers are kept, and whether prompts share their beginning."""

    name: str
    shape: Shape
    weights: str = "bf16"
    kv_cache: str = "bf16"
    num_shared: int = 0  # tokens at the beginning of all prompts; the prefix cache is on if there are any

    def prompt_lens(self, asked: Sequence[int]) -> Sequence[int]:
        """The prompts' lengths: those asked for, or the only one that shares so much."""
        return (self.num_shared + 64,) if self.num_shared else asked


BF16 = Series("bf16", DENSE)
PREFIX = Series("prefix", DENSE, num_shared=448)
SERIES = (
    BF16,
    Series("int8", DENSE, weights="int8"),
    Series("int8_kv", DENSE, weights="int8", kv_cache="int8"),
    PREFIX,
    Series("moe", MOE),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """Clients that each send their next prompt when the last answer is whole."""

    series: Series
    prompt_len: int
    concurrency: int

    @property
    def num_requests(self) -> int:
        """Few clients ask several times, so that a figure rests on some answers; many with long prompts once."""
        if self.concurrency == 1:
            return 4
        return self.concurrency * (1 if self.concurrency * self.prompt_len >= LONG_WAVE else 2)

    @property
    def description(self) -> str:
        """For people."""
        return f"{self.series.name}, {self.prompt_len} x {self.concurrency}"

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Random tokens; with another seed all are others, those that are shared too."""
        rng = random.Random(f"{self.description}, {seed}")
        shared = _tokens(rng, vocab_size, self.series.num_shared)
        num_own = self.prompt_len - len(shared)
        return [[*shared, *_tokens(rng, vocab_size, num_own)] for _ in range(self.num_requests)]

    def warm_up(self, vocab_size: int) -> list[list[int]]:
        """Prompts that are answered first, and not measured."""
        return self.prompts(vocab_size, seed=-1)[: min(self.concurrency, 8)]

    def setting(self, model: str, num_threads: int) -> Setting:
        """What an engine is loaded with for this cell."""
        return Setting(
            model=model,
            weights=self.series.weights,
            kv_cache=self.series.kv_cache,
            num_threads=num_threads,
            max_num_seqs=self.concurrency,
            max_model_len=self.prompt_len + NUM_OUTPUT_TOKENS,
            prefix_caching=self.series.num_shared > 0,
        )


def _tokens(rng: random.Random, vocab_size: int, count: int) -> list[int]:
    return [rng.randrange(FIRST_TOKEN, vocab_size) for _ in range(count)]


def chosen_cells(series: Sequence[Series], prompt_lens: Sequence[int], concurrency: Sequence[int]) -> list[Cell]:
    """All cells of these series."""
    return [
        Cell(each, prompt_len, clients)
        for each in series
        for prompt_len in each.prompt_lens(prompt_lens)
        for clients in concurrency
    ]
