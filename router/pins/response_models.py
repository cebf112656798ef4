"""Bodies of responses for /openapi.json."""

from typing import Literal

from typing_extensions import TypedDict


class PinObject(TypedDict):
    """A pinned prefix."""

    id: str
    object: Literal["cache.pin"]
    model: str
    tokens: int  # held tokens of the prefix, in whole blocks
    blocks: int  # held by all workers together
    bytes: int  # memory of the blocks
    workers: list[str]  # ids; empty while the prefix is placed again
    expires_at: float  # Unix time


class PinList(TypedDict):
    """All pins of the API key's tenant."""

    object: Literal["list"]
    data: list[PinObject]


class DeletedPin(TypedDict):
    """The end of a pin."""

    id: str
    object: Literal["cache.pin"]
    deleted: bool


class ClearedCache(TypedDict):
    """Number of forgotten blocks, by worker."""

    object: Literal["cache.clear"]
    blocks: dict[str, int]
