"""The line that explains a decision."""

from dataclasses import replace

from baton.deployment.autoscaling.explanation import explain
from baton.deployment.autoscaling.snapshot import Arrivals, ReplicaLatency
from tests.unit.deployment.autoscaling_snapshots import SETTINGS, Planner, decode, pool, prefill, snapshot, traffic

LATE = pool(2, latencies=(ReplicaLatency(1000.0, 100, 0.7), ReplicaLatency(1000.0, 100, 0.7)))
SEEN = snapshot(load=traffic(4.0, prompt=1500, remote_share=0.75), prefill=prefill(LATE))


def test_a_line_has_what_is_measured_believed_and_needed() -> None:
    decision = Planner().plan(SEEN)
    line = explain(SEEN, decision, SETTINGS)
    assert line.startswith(
        "measured: 4 requests/s, prompts of 1500 tokens (1500 uncached), outputs of 100, 25% of the prompts computed "
        "by decode workers, TTFT 0.7 of 1 s and TPOT unknown of 0.05 s for 95%; "
        "believed: prefill takes 1.00 and decode 1.00 times as long as reported, so 2 + 1 give TTFT "
    )
    assert f"needed: {decision.prefill.need} + {decision.decode.need} for 4 requests/s in 60 s, with " in line
    assert line.endswith(decision.reason)


def test_the_line_has_the_load_that_the_sizes_are_for() -> None:
    """It is of another time than the latencies: here of the last 10 s, because the arrivals have jumped."""
    planner = Planner()
    jumped = replace(SEEN, traffic=traffic(4.0, recent=(Arrivals(10.0, 90),)))
    line = explain(jumped, planner.plan_for(15, jumped), SETTINGS)
    assert line.startswith("measured: 4 requests/s, ")
    assert " for 9 requests/s in 10 s, with " in line
    steady = replace(SEEN, now_s=1000.0)
    assert " for 4 requests/s in 240 s, with " in explain(steady, planner.plan_for(260, steady), SETTINGS)


def test_nothing_is_believed_of_invalid_measurements_or_empty_pools() -> None:
    invalid = replace(SEEN, decode=decode(pool(), step_s=-1.0))
    line = explain(invalid, Planner().plan(invalid), SETTINGS)
    assert "measured: 4 requests/s" in line
    assert "believed" not in line
    empty = replace(SEEN, prefill=prefill(pool(0)))
    assert "give TTFT" not in explain(empty, Planner().plan(empty), SETTINGS)
