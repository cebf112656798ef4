import random

import torch

from baton.kvtransfer.base import PoolIdentity
from baton.kvtransfer.local_pool import LocalPool, runs


def test_runs_cover_every_pair_once_and_join_neighbours() -> None:
    rng = random.Random(1)
    for _ in range(200):
        count = rng.randint(0, 30)
        remote = [rng.randint(0, 8) for _ in range(count)]
        local = rng.sample(range(40), count)
        if rng.random() < 0.5:
            local.sort()
            remote.sort()
        limit = rng.randint(1, 5)
        split = list(runs(remote, local, limit))
        pairs = [(run.remote + i, run.local + i) for run in split for i in range(run.num_units)]
        assert pairs == list(zip(remote, local, strict=True))
        assert all(1 <= run.num_units <= limit for run in split)
    assert [run.num_units for run in runs([3, 4, 5, 9, 10], [0, 1, 2, 3, 5], 8)] == [4 - 1, 1, 1]


def test_bytes_of_a_pool_are_its_own_memory() -> None:
    tensor = torch.zeros(6, 2, 5, dtype=torch.bfloat16)
    pool = LocalPool.of(tensor, PoolIdentity("a", "b"))
    assert (pool.num_blocks, pool.block_bytes, pool.num_bytes) == (6, 20, 120)
    pool.as_bytes()[4] = 255
    assert bool(tensor[4].isnan().all())
    assert bool((tensor[[0, 1, 2, 3, 5]] == 0).all())
    assert len(pool.memory()) == 120
    halves = pool.in_units(10)
    assert halves.shape == (12, 10)
    halves[3] = 1
    assert bool((pool.as_bytes()[1, 10:] == 1).all())
    assert bool((pool.as_bytes()[1, :10] == 0).all())
