"""One request of a dataset."""

from dataclasses import dataclass

from baton.loadtool.vocabulary import TokenIds


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What is asked for, before it has an API's shape."""

    prompt: TokenIds | str
    num_output_tokens: int
    due_s: float | None = None  # from the trace's start, in its own time; None: the dataset has no times
