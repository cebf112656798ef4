import math

import pytest
import torch

from baton.engine.sampling.noise import gumbel_noise, row_keys
from tests.unit.engine.sampler_reference import gumbel

CPU = torch.device("cpu")
EULER = 0.5772156649
KNOWN_KEYS = [0, -2365590929677817832, -2691021951098627401]
KNOWN_NOISE = [0.15654346892160162, -0.11339841344026813, -0.6075728422619829, 0.07111794899096452]


def noise_of(seed: int, position: int, counters: list[int]) -> list[float]:
    return gumbel_noise(row_keys([seed], [position], CPU), torch.tensor(counters))[0].tolist()


def test_noise_has_known_values() -> None:
    """Values that must never change: a request's tokens depend on them, across releases and machines."""
    keys = row_keys([0, 1, 2**64 - 1], [0, 7, 131072], CPU)
    assert keys.tolist() == KNOWN_KEYS
    assert noise_of(42, 1000, [0, 1, 31999, 1 << 32]) == pytest.approx(KNOWN_NOISE, rel=1e-14)


def test_noise_equals_splitmix64_in_python_integers() -> None:
    seeds = [0, 1, 12345, 2**63 - 1, 2**63, 2**64 - 1]
    positions = [0, 1, 2, 4095, 131072, 2**31]
    counters = [0, 1, 127, 128, 50_000, 2**32, 2**32 + 999]
    found = gumbel_noise(row_keys(seeds, positions, CPU), torch.tensor(counters))
    expected = [[gumbel(seed, position, c) for c in counters] for seed, position in zip(seeds, positions, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)


def test_a_number_depends_on_its_seed_position_and_counter_alone() -> None:
    keys = row_keys(list(range(40)), list(range(100, 140)), CPU)
    whole = gumbel_noise(keys, torch.arange(1000))
    some = torch.randint(1000, (40, 13), generator=torch.Generator().manual_seed(0))
    assert torch.equal(gumbel_noise(keys, some), whole.gather(1, some))
    assert torch.equal(gumbel_noise(keys[17:18], torch.arange(1000)), whole[17:18])
    assert torch.equal(gumbel_noise(keys[3:9], torch.arange(500, 777)), whole[3:9, 500:777])


def test_noise_is_gumbel_distributed() -> None:
    noise = gumbel_noise(row_keys([3] * 200, list(range(200)), CPU), torch.arange(5000)).flatten()
    assert abs(float(noise.mean()) - EULER) < 5 * math.pi / math.sqrt(6) / 1000
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.02
    # Kolmogorov-Smirnov against exp(-exp(-x)); 1.95 / sqrt(n) is exceeded once in a thousand times.
    uniform = torch.exp(-torch.exp(-noise)).sort().values
    steps = torch.arange(1, len(uniform) + 1) / len(uniform)
    assert float((uniform - steps).abs().max()) < 1.95 / math.sqrt(len(uniform))


def test_neighbouring_seeds_positions_and_counters_are_uncorrelated() -> None:
    counters = torch.arange(20_000)
    seeds, positions = [0, 1, 2, 0, 0, 2**63], [0, 0, 0, 1, 2, 0]
    noise = gumbel_noise(row_keys(seeds, positions, CPU), counters)
    rows = torch.cat([noise, noise[:1].roll(1, 1), noise[:1].roll(128, 1)])
    correlation = torch.corrcoef(rows) - torch.eye(len(rows))
    assert float(correlation.abs().max()) < 5 / math.sqrt(len(counters))


def test_noise_is_finite_at_the_ends_of_the_range() -> None:
    noise = gumbel_noise(row_keys(list(range(64)), [0] * 64, CPU), torch.arange(100_000))
    assert bool(noise.isfinite().all())
    assert -3.6 < float(noise.min()) < -2.5
    assert 13 < float(noise.max()) < 36.8
