"""A request as one replica has it."""

from collections.abc import Sequence as Ordered
from dataclasses import dataclass, field
from typing import Protocol

from baton.engine.kv.block_hash import BlockHash
from baton.engine.request import BlockId


class Owner(Protocol):
    """Who gave a sequence to a replica hears what becomes of it."""

    def has_blocks(self) -> None:
        """It receives its KV, and has got the blocks for it."""

    def has_advanced(self) -> None:
        """More of its prompt is computed."""

    def has_ended(self) -> None:
        """Its last token is sampled."""


@dataclass(slots=True, eq=False)
class Sequence:
    """Owns its blocks while it runs; `num_tokens` is raised only where somebody asks, not with every token."""

    order: int  # of coming to the replica; lower is served first
    number: int  # of the router's command
    hashes: Ordered[BlockHash]  # of the prompt's full blocks
    num_prompt_tokens: int
    num_left: int  # tokens to sample here, as of `num_tokens`
    owner: Owner
    is_receiving: bool = False  # its KV comes from elsewhere, before it is computed here
    keeps_blocks: bool = False  # after its end, until `Replica.release`
    num_tokens: int = 0  # prompt, and output so far
    num_computed: int = 0  # whose KV is here
    num_cached: int = 0  # found in the cache when it was admitted first
    num_queued: int = 0  # tokens to compute, as was expected when it began to wait
    num_preemptions: int = 0
    blocks: list[BlockId] = field(default_factory=list)
    joined_tick: int = 0  # the replica's tick at which `num_tokens` was right
    life: int = 0  # counts how often it left the batch, so that what was planned before is not taken for news
    num_stored: int = 0  # blocks offered to the cache

    def __post_init__(self) -> None:
        self.num_tokens = self.num_tokens or self.num_prompt_tokens

    @property
    def num_missing(self) -> int:
        """Tokens to compute."""
        return self.num_tokens - self.num_computed

    def hash_of(self, index: int) -> BlockHash:
        """Of a full block; one with output is like no other's."""
        if index < len(self.hashes):
            return self.hashes[index]
        return BlockHash(self.number.to_bytes(8, "little") + index.to_bytes(8, "little"))
