"""Random prompts of given lengths, with shared prefixes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from baton.loadtool.errors import SettingError
from baton.loadtool.lengths import Lengths
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class SyntheticShape:
    """Lengths of synthetic requests, in tokens."""

    input_len: int = 1024  # without the prefix
    output_len: int = 128
    range_ratio: float = 0.0  # lengths are uniform in length * (1 +/- ratio)
    prefix_len: int = 0  # of the shared prefix
    num_prefixes: int = 1  # each prompt has one at random

    def __post_init__(self) -> None:
        if not 0 <= self.range_ratio < 1:
            raise SettingError(f"--random-range-ratio {self.range_ratio:g}: must be from 0 to below 1")


class SyntheticPrompts:
    """Endless synthetic requests."""

    name = "synthetic"
    has_times = False

    def __init__(self, shape: SyntheticShape, vocabulary: Vocabulary, lengths: Lengths) -> None:
        self._shape = shape
        self._vocabulary = vocabulary
        self._lengths = lengths

    def requests(self, seed: int) -> Iterator[LoadRequest]:
        """Yield requests without end."""
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
