"""KV heads of a layer."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVHeads:
    """KV heads of a layer."""

    count: int
    width: int
