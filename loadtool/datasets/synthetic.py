"""Random prompts of chosen lengths, behind prefixes that they share."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from baton.loadtool.errors import SettingError
from baton.loadtool.lengths import Lengths
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class SyntheticShape:
    """How long prompts and answers are."""

    input_len: int = 1024  # tokens beyond the prefix
    output_len: int = 128
    range_ratio: float = 0.0  # lengths are uniform from (1 - ratio) to (1 + ratio) times the stated ones
    prefix_len: int = 0  # tokens that prompts begin with and share
    num_prefixes: int = 1  # among which each prompt has one at random

    def __post_init__(self) -> None:
        if not 0 <= self.range_ratio < 1:
            raise SettingError(f"--random-range-ratio {self.range_ratio:g}: it must be from 0 to below 1")


class SyntheticPrompts:
    """As many as wanted."""

    name = "synthetic"
    has_times = False

    def __init__(self, shape: SyntheticShape, vocabulary: Vocabulary, lengths: Lengths) -> None:
        self._shape = shape
        self._vocabulary = vocabulary
        self._lengths = lengths

    def requests(self, seed: int) -> Iterator[LoadRequest]:
        """They never end."""
        shape, vocabulary = self._shape, self._vocabulary
        rng = np.random.default_rng(seed)
        prefixes = [vocabulary.draw(rng, shape.prefix_len) for _ in range(shape.num_prefixes)]
        while True:
            prefix = prefixes[rng.integers(shape.num_prefixes)]
            own = vocabulary.draw(rng, self._lengths.num_input(self._around(rng, shape.input_len)))
            num_output_tokens = self._lengths.num_output(self._around(rng, shape.output_len))
            prompt = np.concatenate((prefix, own))
            limit = self._lengths.max_input
            yield LoadRequest(prompt if limit is None else prompt[:limit], num_output_tokens)

    def _around(self, rng: np.random.Generator, length: int) -> int:
        ratio = self._shape.range_ratio
        return int(rng.integers(max(1, int(length * (1 - ratio))), int(np.ceil(length * (1 + ratio))), endpoint=True))
