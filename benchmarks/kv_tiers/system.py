"""The interface of a measured server or engine with a store below its KV cache."""

from collections.abc import Sequence
from typing import Protocol

Prompt = Sequence[int]


class SystemFailed(Exception):
    """A system cannot be measured; the message says why."""


class System(Protocol):
    """A system whose KV cache holds one prompt, so that each prompt evicts the one before it. Raises SystemFailed."""

    @property
    def name(self) -> str:
        """Name in the table."""
        ...

    async def compute_s(self, prompt: Prompt) -> float:
        """Return the TTFT of a new prompt."""
        ...

    async def fetch_s(self, prompt: Prompt) -> float:
        """Return the TTFT of the prompt before the last, once its KV is stored and dropped from the page cache."""
        ...

    def limit_s(self, computed_s: float) -> float | None:
        """Return the shortest time of a fetch, if the whole prompt is computed in `computed_s`; None: unknown."""
        ...
