"""Under a steady load sizes hardly change, despite its noise."""

from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import Traffic
from tests.marks import slow_case
from tests.unit.deployment.autoscaling_load import Load
from tests.unit.deployment.autoscaling_rig import Rig
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, decode, pool, prefill, snapshot
from tests.unit.deployment.size_turns import most_turns, turns

TURN_S = 600.0


@dataclass(frozen=True, slots=True)
class Steady:
    """Poisson arrivals with log-normal lengths, as a router measures them in a window."""

    requests_per_s: float
    prompt: float
    output: float
    sigma: float
    window_s: int
    seed: int

    def traffic(self, num_seconds: int) -> list[Traffic]:
        """Yield the measurements at the end of each second."""
        random = np.random.default_rng(self.seed)
        counts = random.poisson(self.requests_per_s, num_seconds + self.window_s)
        ends = np.concatenate(([0], np.cumsum(counts)))
        sums = [self._sums(random, mean, int(ends[-1])) for mean in (self.prompt, self.output)]
        found = []
        for second in range(num_seconds):
            begin, end = ends[second], ends[second + self.window_s]
            count = max(1, int(end - begin))
            prompts, outputs = (
                Moments(*(float(total[end] - total[begin]) / count for total in totals)) for totals in sums
            )
            found.append(
                Traffic(
                    window_s=float(self.window_s),
                    requests_per_s=float(end - begin) / self.window_s,
                    prompt_tokens=prompts,
                    uncached_tokens=prompts,
                    output_tokens=outputs,
                )
            )
        return found

    def _sums(self, random: np.random.Generator, mean: float, count: int) -> tuple[np.ndarray, np.ndarray]:
        values = random.lognormal(np.log(mean) - self.sigma**2 / 2, self.sigma, count)
        return tuple(np.concatenate(([0.0], np.cumsum(each))) for each in (values, values * values))  # type: ignore[return-value]


def followed(
    steady: Steady, chosen: ScalingSettings, num_seconds: int, kv_tokens: int = 400_000
) -> tuple[list[int], list[int]]:
    """Return the successive sizes of pools without start times."""
    sizes, state = [(1, 1)], None
    for second, traffic in enumerate(steady.traffic(num_seconds)):
        seen = snapshot(
            float(second),
            traffic,
            prefill=prefill(pool(sizes[-1][0])),
            decode=decode(pool(sizes[-1][1]), kv_tokens=kv_tokens),
        )
        decision, state = plan_pools(seen, state, chosen)
        sizes.append((decision.prefill.target, decision.decode.target))
    return [prefills for prefills, _ in sizes], [decodes for _, decodes in sizes]


SHARED = Steady(34.29569994043487, 5070.753877021935, 195.90894957490445, 1.0, 60, 145)  # more than 6 GPUs can serve


# The same loads in each run, since some random load always makes a pool turn; and shrinking would take minutes.
@pytest.mark.slow
@settings(max_examples=4, phases=[Phase.explicit, Phase.generate], derandomize=True)
@example(SHARED, 6)
@example(replace(SHARED, output=195.0, sigma=1.125), 6)
@given(
    st.builds(
        Steady,
        requests_per_s=st.floats(0.05, 60),
        prompt=st.floats(200, 6000),
        output=st.floats(20, 600),
        sigma=st.floats(0.0, 1.2),
        window_s=st.sampled_from([15, 30, 60, 120]),
        seed=st.integers(0, 1000),
    ),
    st.sampled_from([6, 16, 200]),
)
def test_a_steady_load_turns_no_pool_twice_in_ten_minutes(steady: Steady, budget_gpus: int) -> None:
    for sizes in followed(steady, replace(SETTINGS, budget_gpus=budget_gpus), 3000):
        assert most_turns(turns(sizes), TURN_S) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requests_per_s", "seed"),  # close to needing one more replica
    [
        (5.2, 0),
        slow_case(19.4, 1),
        *(slow_case(*each) for each in [(1.9, 0), (1.9, 1), (5.2, 1), (13.9, 0), (13.9, 1), (19.4, 0)]),
    ],
)
def test_hours_of_poisson_arrivals_at_the_boundary_of_a_size(requests_per_s: float, seed: int) -> None:
    for sizes in followed(Steady(requests_per_s, 2000, 100, 0.8, 60, seed), SETTINGS, 2 * 3600):
        found = turns(sizes)
        assert most_turns(found, TURN_S) <= 1
        assert len(found) <= 4  # and rarely at all


# Close to needing one more replica.
@pytest.mark.parametrize("requests_per_s", list(map(slow_case, [3.4, 5.2, 9.0, 13.9])))
def test_hours_in_which_kv_is_decodes_bottleneck(requests_per_s: float) -> None:
    """Two thirds of the held KV waits for its first token, so decode's need changes with prefill's."""
    steady = Steady(requests_per_s, 2000, 30, 0.8, 60, 0)
    prefills, decodes = followed(steady, SETTINGS, 3600, kv_tokens=12_000)
    assert median(decodes) > max(followed(steady, SETTINGS, 700)[1])
    for sizes in (prefills, decodes):
        found = turns(sizes)
        assert most_turns(found, TURN_S) <= 1
        assert len(found) <= 4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requests_per_s", "sigma", "window_s", "seed"),
    [
        (0.3, 1.2, 30, 0),
        slow_case(0.1, 1.2, 30, 0),
        slow_case(1.0, 0.8, 30, 1),
        slow_case(3.0, 1.2, 60, 0),
        slow_case(3.0, 1.2, 60, 1),
    ],
)
def test_hours_of_few_requests_of_very_different_lengths(
    requests_per_s: float, sigma: float, window_s: int, seed: int
) -> None:
    for sizes in followed(Steady(requests_per_s, 2000, 100, sigma, window_s, seed), SETTINGS, 2 * 3600):
        assert most_turns(turns(sizes), TURN_S) <= 1


@pytest.mark.slow
@pytest.mark.parametrize(("requests_per_s", "seed"), [(3.0, 0), slow_case(7.5, 1)])
def test_hours_of_a_closed_loop(requests_per_s: float, seed: int) -> None:
    rig = Rig(Load(lambda _: requests_per_s), SETTINGS, seed=seed, sizes=(2, 1))
    rig.run(2 * 3600)
    for sizes in zip(*(planned.sizes for planned in rig.decisions), strict=True):
        found = turns(sizes)
        assert most_turns(found, TURN_S) <= 1
        assert len(found) <= 4
    assert rig.ttft(600, 7200) < SETTINGS.slo.ttft_s
