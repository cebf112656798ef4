"""Of measurements that make no sense nothing is concluded."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.snapshot import PoolsSnapshot
from tests.unit.deployment.autoscaling_snapshots import QUIET, SETTINGS, Looker, pool, sizes, snapshot, traffic


def broken() -> list[tuple[str, Any]]:
    """Snapshots that make no sense of the prefill pool, the decode pool, or either."""
    seen = snapshot(load=traffic(19.0), prefills=pool(4), decodes=pool(4))
    found: list[tuple[str, Any]] = []
    for bad in (nan, inf, -1.0):
        found += [("prefill", replace(seen, prefill=replace(seen.prefill, tokens_per_s=bad)))]
        found += [("prefill", replace(seen, prefill=replace(seen.prefill, queued_tokens=bad)))]
        found += [("prefill", replace(seen, prefill=replace(seen.prefill, handover_s=bad)))]
        found += [("prefill", replace(seen, prefill=replace(seen.prefill, pool=pool(4, oldest_wait_s=bad))))]
        found += [("decode", replace(seen, decode=replace(seen.decode, step_s=bad)))]
        found += [("decode", replace(seen, decode=replace(seen.decode, sequence_s=bad)))]
        found += [("decode", replace(seen, decode=replace(seen.decode, kv_used_tokens=bad)))]
        found += [("both", replace(seen, traffic=traffic(19.0, requests_per_s=bad)))]
        found += [("both", replace(seen, traffic=traffic(19.0, arrival_cv2=bad)))]
        found += [("both", replace(seen, traffic=traffic(19.0, prompt_tokens=Moments(bad, 1.0))))]
        found += [("prefill", replace(seen, traffic=traffic(19.0, uncached_tokens=Moments(2000.0, bad))))]
        found += [("decode", replace(seen, traffic=traffic(19.0, output_tokens=Moments(bad, 2.0))))]
    found += [("prefill", replace(seen, prefill=replace(seen.prefill, tokens_per_s=0.0)))]
    found += [("decode", replace(seen, decode=replace(seen.decode, step_s=0.0)))]
    found += [("both", replace(seen, traffic=traffic(19.0, prompt=0)))]
    found += [("decode", replace(seen, traffic=traffic(19.0, output=0)))]
    return found


@pytest.mark.parametrize(("pools", "seen"), broken())
def test_of_what_makes_no_sense_nothing_is_concluded(pools: str, seen: PoolsSnapshot) -> None:
    decision = Looker().look_for(310, seen)
    reasons = {"prefill": decision.prefill, "decode": decision.decode}
    for name in ("prefill", "decode") if pools == "both" else (pools,):
        assert reasons[name].target == 4
        assert reasons[name].reason.startswith("stays 4: ")
    if pools == "prefill":
        assert decision.decode.target == 3
    if pools == "decode":
        assert decision.prefill.target == 5


@pytest.mark.parametrize(
    "seen",
    [
        snapshot(nan),
        snapshot(inf),
        snapshot(6.0, prefills=pool(-1)),
        snapshot(6.0, decodes=pool(2, num_draining=nan)),
        snapshot(6.0, decodes=pool(2, starting_since_s=(nan,))),
    ],
)
def test_without_a_clock_or_counts_everything_stays(seen: PoolsSnapshot) -> None:
    looker = Looker()
    before = looker.look_for(5, snapshot(load=traffic(19.0), prefills=pool(4), decodes=pool(3)))
    state = looker.state
    decision = looker.look(seen)
    assert sizes(decision) == sizes(before) == (5, 3)
    assert looker.state is state
    assert "the clock is" in decision.reason or "replicas are" in decision.reason
    assert sizes(Looker().look(seen)) == (1, 1)  # nothing was ever known


def test_nonsense_neither_wakes_pools_nor_puts_them_to_sleep() -> None:
    lost = replace(SETTINGS, idle_s=100.0)
    seen = snapshot(load=traffic(nan), prefills=pool(2), decodes=pool(2))
    assert sizes(Looker(lost).look_for(500, seen)) == (2, 2)
    looker = Looker(lost)
    assert sizes(looker.look(snapshot(0.0, QUIET, pool(0), pool(0)))) == (0, 0)
    assert sizes(looker.look(snapshot(1.0, traffic(nan), pool(0), pool(0)))) == (0, 0)
