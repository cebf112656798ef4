"""Cells of the engine comparison."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.engines.checkpoint import DENSE, MOE, Shape
from benchmarks.engines.drivers.driver import Setting

NUM_OUTPUT_TOKENS = 64
PROMPT_LENS = (128, 512, 2048)
CONCURRENCY = (1, 8, 32)
FIRST_TOKEN = 300  # lower ids are special tokens or bytes
LONG_WAVE = 8192  # with this many concurrent prompt tokens, each client sends only one request


@dataclass(frozen=True, slots=True)
class Series:
    """A model, its dtypes, and whether prompts share a prefix."""

    name: str
    shape: Shape
    weights: str = "bf16"
    kv_cache: str = "bf16"
    num_shared: int = 0  # tokens of the shared prefix; above 0 the prefix cache is on

    def prompt_lens(self, asked: Sequence[int]) -> Sequence[int]:
        """Return the prompt lengths: the requested ones, or the single one of a shared prefix."""
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
    """A number of clients that each send the next prompt when their response is complete."""

    series: Series
    prompt_len: int
    concurrency: int

    @property
    def num_requests(self) -> int:
        """Number of requests: several per client if there are few clients, one for many clients with long prompts."""
        if self.concurrency == 1:
            return 4
        return self.concurrency * (1 if self.concurrency * self.prompt_len >= LONG_WAVE else 2)

    @property
    def description(self) -> str:
        """For people."""
        return f"{self.series.name}, {self.prompt_len} x {self.concurrency}"

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Return random prompts; a new seed changes all tokens, including the shared prefix."""
        rng = random.Random(f"{self.description}, {seed}")
        shared = _tokens(rng, vocab_size, self.series.num_shared)
        num_own = self.prompt_len - len(shared)
        return [[*shared, *_tokens(rng, vocab_size, num_own)] for _ in range(self.num_requests)]

    def warm_up(self, vocab_size: int) -> list[list[int]]:
        """Return the warmup prompts."""
        return self.prompts(vocab_size, seed=-1)[: min(self.concurrency, 8)]

    def setting(self, model: str, num_threads: int) -> Setting:
        """Return the settings to load an engine with."""
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
    """Return all cells of these series."""
    return [
        Cell(each, prompt_len, clients)
        for each in series
        for prompt_len in each.prompt_lens(prompt_lens)
        for clients in concurrency
    ]
