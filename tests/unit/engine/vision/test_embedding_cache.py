"""The cache of embeddings is bounded, and keyed by tenant and image."""

import torch
from torch import Tensor

from baton.engine.vision.embedding_cache import EmbeddingCache


class Maker:
    def __init__(self) -> None:
        self.num_made = 0

    def __call__(self) -> Tensor:
        self.num_made += 1
        return torch.zeros(100, dtype=torch.uint8)


def test_the_least_recently_used_is_evicted() -> None:
    cache, make = EmbeddingCache(250), Maker()
    for name in (b"a", b"b", b"a", b"c", b"a"):
        cache.get(("", name), make)
    assert make.num_made == 3
    assert cache.num_bytes == 200
    cache.get(("", b"b"), make)
    assert make.num_made == 4


def test_one_that_is_too_large_stays_until_the_next() -> None:
    cache, make = EmbeddingCache(50), Maker()
    cache.get(("", b"a"), make)
    cache.get(("", b"a"), make)
    assert make.num_made == 1
    cache.get(("", b"b"), make)
    assert cache.num_bytes == 100


def test_tenants_share_nothing() -> None:
    cache, make = EmbeddingCache(1000), Maker()
    cache.get(("one", b"a"), make)
    cache.get(("other", b"a"), make)
    assert make.num_made == 2
