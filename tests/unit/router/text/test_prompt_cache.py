"""The LRU cache of token ids, within its limit."""

import random

from baton.router.text.prompt_encoder import ENTRY_BYTES, PromptCache


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    cache = PromptCache(5 * (ENTRY_BYTES + 150))
    for name in "abcde":
        cache.put(("", name), [1])
    assert cache.get(("", "a")) == [1]
    for name in "fg":
        cache.put(("", name), [2])
    assert cache.get(("", "b")) is None
    assert cache.get(("", "a")) == [1]
    assert cache.get(("", "g")) == [2]


def test_it_stays_within_its_bound() -> None:
    rng, cache = random.Random(3), PromptCache(100_000)
    for number in range(3000):
        text = f"{number} " * rng.randrange(1, 300)
        cache.put(("", text), list(range(rng.randrange(100))))
        assert 0 < cache.num_bytes <= 100_000
    num_bytes = cache.num_bytes
    cache.put(("", text), [1])  # it is there already
    assert cache.num_bytes == num_bytes
    assert len(cache) > 10


def test_one_large_text_does_not_evict_the_others() -> None:
    cache = PromptCache(100_000)
    cache.put(("", "small"), [1])
    cache.put(("", "x" * 50_000), [1])
    assert cache.get(("", "x" * 50_000)) is None
    assert cache.get(("", "small")) == [1]
