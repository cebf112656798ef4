"""Hashes of pinned prefixes, which are those of requests that begin with them."""

import pytest

from baton.engine.lora.activation import activated_digest
from baton.engine.vision.image import Image
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


def test_images_are_part_of_the_hashes() -> None:
    tokens, image = list(range(64)), Image(20, 2, 3, b"d" * 16, b"")
    expected = PromptHashes(tokens, "", [image]).extended(tokens, BLOCK_SIZE)
    assert Prefix.of(tokens, "", images=(image,)).hashes(BLOCK_SIZE) == expected
    plain = Prefix.of(tokens, "").hashes(BLOCK_SIZE)
    assert expected[:16] == plain[:16]
    assert expected[16:32] != plain[16:32]


def test_a_prefix_without_the_invocation_is_the_models() -> None:
    prefix = list(range(64))
    assert Prefix.of(prefix, "", ACTIVATED).hashes(BLOCK_SIZE) == Prefix.of(prefix, "").hashes(BLOCK_SIZE)
