"""Requests of several kinds in turn."""

from collections.abc import Iterator, Sequence

from baton.loadtool.datasets.synthetic import SyntheticPrompts, SyntheticShape
from baton.loadtool.lengths import Lengths
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import Vocabulary


class MixedPrompts:
    """A dataset of random prompts: one of each kind, then the next of each."""

    name = "mixed"
    has_times = False

    def __init__(self, shapes: Sequence[SyntheticShape], vocabulary: Vocabulary) -> None:
        self._kinds = [SyntheticPrompts(shape, vocabulary, Lengths()) for shape in shapes]

    def requests(self, seed: int) -> Iterator[LoadRequest]:
        """They never end; no two kinds have the same tokens."""
        kinds = [kind.requests(seed * len(self._kinds) + number) for number, kind in enumerate(self._kinds)]
        while True:
            for kind in kinds:
                yield next(kind)
