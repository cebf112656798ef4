"""For any measurements, sizes stay within their limits."""

from dataclasses import replace
from math import inf, nan

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.snapshot import (
    DecodeSnapshot,
    PoolSnapshot,
    PoolsSnapshot,
    PrefillSnapshot,
    ReplicaLatency,
    Traffic,
)
from tests.unit.deployment.autoscaling_snapshots import SETTINGS

ANY = st.one_of(st.floats(), st.floats(0, 1e6), st.sampled_from([0.0, 1.0, nan, inf, 1e-300, 1e300]))

COUNT = st.integers(0, 6)


@st.composite
def any_pool(draw: st.DrawFn) -> PoolSnapshot:
    return PoolSnapshot(
        num_ready=draw(COUNT),
        starting_since_s=tuple(draw(st.lists(st.floats(-1e4, 1e4), max_size=3))),
        num_draining=draw(COUNT),
        start_s=draw(ANY),
        drain_s=draw(ANY),
        oldest_wait_s=draw(ANY),
        latencies=tuple(draw(st.lists(st.builds(ReplicaLatency, ANY, st.integers(-5, 1000), ANY), max_size=2))),
    )


MOMENTS = st.builds(Moments, ANY, ANY)

SNAPSHOTS = st.builds(
    PoolsSnapshot,
    now_s=st.floats(0, 1e5),
    traffic=st.builds(
        Traffic,
        window_s=ANY,
        requests_per_s=ANY,
        arrival_cv2=ANY,
        prompt_tokens=MOMENTS,
        uncached_tokens=MOMENTS,
        output_tokens=MOMENTS,
    ),
    prefill=st.builds(
        PrefillSnapshot,
        pool=any_pool(),
        tokens_per_s=ANY,
        step_s=ANY,
        max_step_tokens=st.integers(-1, 10_000),
        handover_s=ANY,
        queued_tokens=ANY,
    ),
    decode=st.builds(
        DecodeSnapshot,
        pool=any_pool(),
        step_s=ANY,
        sequence_s=ANY,
        max_num_seqs=st.integers(-1, 1000),
        kv_tokens=st.integers(-1, 10**7),
        kv_used_tokens=st.integers(-1, 10**7),
        num_running=st.integers(-1, 1000),
        num_waiting=st.integers(-1, 1000),
    ),
)


@settings(max_examples=60)
@given(st.lists(SNAPSHOTS, min_size=1, max_size=6), st.sampled_from([None, 0.0, 50.0]), st.sampled_from([None, 1.0]))
def test_any_measurements_give_sizes_within_the_limits(
    seen: list[PoolsSnapshot], idle_s: float | None, flip_s: float | None
) -> None:
    chosen = replace(SETTINGS, idle_s=idle_s, flip_s=flip_s, upscale_delay_s=0.0, downscale_delay_s=0.0)
    state = None
    for each in seen:
        decision, state = plan_pools(each, state, chosen)
        for part in (decision.prefill, decision.decode):
            assert 0 <= part.target <= chosen.budget_gpus
            assert part.reason
            assert 0.5 <= part.factor <= 2.0
