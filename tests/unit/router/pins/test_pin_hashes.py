"""Hashes of pinned prefixes, which are those of requests that begin with them."""

import pytest

from baton.engine.lora.activation import activated_digest
from baton.router.adapters.adapter import Adapter
from baton.router.generation import PromptHashes
from baton.router.pins.pin import Prefix

BLOCK_SIZE = 16
INVOCATION = (901, 902)
ACTIVATED = Adapter("judge", "judge", activated_digest("ab", INVOCATION))
USUAL = Adapter("usual", "usual", "ab")


@pytest.mark.parametrize("adapter", [None, USUAL, ACTIVATED], ids=["model", "usual", "activated"])
@pytest.mark.parametrize("place", [None, 0, 15, 16, 40], ids=str)
def test_pinned_prefixes_have_the_hashes_of_prompts(adapter: Adapter | None, place: int | None) -> None:
    prefix = list(range(64))
    if place is not None:
        prefix[place : place + len(INVOCATION)] = INVOCATION
    expected = PromptHashes(prefix, "salt", adapter=adapter).extended(prefix, BLOCK_SIZE)
    assert Prefix.of(prefix, "salt", adapter).hashes(BLOCK_SIZE) == expected


def test_a_prefix_without_the_invocation_is_the_models() -> None:
    prefix = list(range(64))
    assert Prefix.of(prefix, "", ACTIVATED).hashes(BLOCK_SIZE) == Prefix.of(prefix, "").hashes(BLOCK_SIZE)
