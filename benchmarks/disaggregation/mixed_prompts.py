"""Dataset that alternates between several kinds of requests."""

from collections.abc import Iterator, Sequence

from baton.loadtool.datasets.synthetic import SyntheticPrompts, SyntheticShape
from baton.loadtool.lengths import Lengths
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import Vocabulary


class MixedPrompts:
    """Random prompts of several shapes, in turn."""

    name = "mixed"
    has_times = False

    def __init__(self, shapes: Sequence[SyntheticShape], vocabulary: Vocabulary) -> None:
        self._kinds = [SyntheticPrompts(shape, vocabulary, Lengths()) for shape in shapes]

    def requests(self, seed: int) -> Iterator[LoadRequest]:
        """Yield requests without end; the kinds share no tokens."""
        kinds = [kind.requests(seed * len(self._kinds) + number) for number, kind in enumerate(self._kinds)]
        while True:
            for kind in kinds:
                yield next(kind)
