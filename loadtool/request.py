"""One request of a dataset."""

from dataclasses import dataclass

from baton.loadtool.vocabulary import TokenIds


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A request, independent of the API."""

    prompt: TokenIds | str
    num_output_tokens: int
    due_s: float | None = None  # from the trace's start, unscaled; None: the dataset has no times
