"""The index against the plain definition of a longest cached prefix."""

import random
from hashlib import blake2b

import pytest

from engine.block_hash import BlockHash, hash_blocks
from router.prefix_index import PrefixIndex
from router.prompt_hashes import PromptHashes


def longest_prefix(cached: set[BlockHash], hashes: list[BlockHash]) -> int:
    for length in range(len(hashes), 0, -1):
        if all(each in cached for each in hashes[:length]):
            return length
    return 0


def test_matches_are_those_of_brute_force() -> None:
    rng = random.Random(0)
    prompts = [hash_blocks([rng.randrange(3) for _ in range(24)], 2) for _ in range(40)]
    universe = sorted({each for prompt in prompts for each in prompt})
    index, cached = PrefixIndex(), dict[str, set[BlockHash]]()
    for _ in range(300):
        worker = rng.choice("abc")
        if rng.random() < 0.05:
            index.reset(worker)
            cached.pop(worker, None)
        else:
            removed = rng.sample(universe, rng.randrange(20))
            stored = rng.sample(universe, rng.randrange(40))
            index.update(worker, b"".join(removed), b"".join(stored))
            cached[worker] = (cached.get(worker, set()) - set(removed)) | set(stored)
        prompt = rng.choice(prompts)
        expected = {name: longest_prefix(blocks, prompt) for name, blocks in cached.items()}
        assert index.match(prompt) == {name: count for name, count in expected.items() if count}
        assert all(index.num_blocks(name) == len(blocks) for name, blocks in cached.items())


def test_a_block_that_left_and_came_in_one_event_is_there() -> None:
    index = PrefixIndex()
    [block] = hash_blocks([1, 2], 2)
    index.update("a", block, block)
    assert index.match([block]) == {"a": 1}


def test_no_blocks_match_nothing() -> None:
    index = PrefixIndex()
    index.update("a", b"", b"x" * 16)
    assert index.match([]) == {}


def test_a_cut_hash_is_an_error() -> None:
    with pytest.raises(ValueError, match="17 bytes"):
        PrefixIndex().update("a", b"", b"x" * 17)


def test_a_prompt_is_hashed_once_for_all_its_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, output = list(range(21)), [7] * 9
    expected = [hash_blocks([*prompt, *output[:num]], 4, "salt") for num in range(10)]
    hashes = PromptHashes(prompt, "salt")
    assert hashes.extended(prompt, 8) == hash_blocks(prompt, 8, "salt")
    assert hashes.extended(prompt, 4) == expected[0]
    num_hashed = 0

    def counted(*arguments: object, **options: int) -> object:
        nonlocal num_hashed
        num_hashed += 1
        return blake2b(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("engine.block_hash.blake2b", counted)
    for num in range(10):
        assert hashes.extended([*prompt, *output[:num]], 4) == expected[num]
    assert num_hashed == sum(len(each) - len(expected[0]) for each in expected)
