"""Hand-made snapshots of two pools."""

from dataclasses import replace
from typing import Any

from baton.deployment.autoscaling.decision import Decision
from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.plan import plan_pools
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import (
    DecodeSnapshot,
    PoolSnapshot,
    PoolsSnapshot,
    PrefillSnapshot,
    Traffic,
)
from baton.deployment.autoscaling.state import ScalingState

SETTINGS = ScalingSettings(budget_gpus=16)


def exponential(mean: float) -> Moments:
    """Return the moments of exponential lengths."""
    return Moments(mean, 2 * mean * mean)


def traffic(rate: float, prompt: float = 2000, output: float = 100, **changes: Any) -> Traffic:
    """Return Poisson arrivals of requests with exponential lengths and nothing cached."""
    values = {
        "requests_per_s": rate,
        "prompt_tokens": exponential(prompt),
        "uncached_tokens": exponential(prompt),
        "output_tokens": exponential(output),
    }
    return Traffic(**{**values, **changes})


QUIET = traffic(0.0, prompt=0, output=0)


def pool(num_ready: int = 1, **changes: Any) -> PoolSnapshot:
    """Return a pool whose replicas take 30 s to start and 10 s to drain."""
    return PoolSnapshot(**{"num_ready": num_ready, "start_s": 30.0, "drain_s": 10.0, **changes})


def prefill(replicas: PoolSnapshot, **changes: Any) -> PrefillSnapshot:
    """Return prefill replicas of 10,000 tokens a second: a prompt of 2,000 tokens takes 0.2 s."""
    return PrefillSnapshot(**{"pool": replicas, "tokens_per_s": 10_000.0, **changes})


def decode(replicas: PoolSnapshot, **changes: Any) -> DecodeSnapshot:
    """Return decode replicas that run 41 sequences in steps of 50 ms."""
    return DecodeSnapshot(
        **{"pool": replicas, "step_s": 0.01, "sequence_s": 0.001, "max_num_seqs": 64, "kv_tokens": 400_000, **changes}
    )


def snapshot(
    now_s: float = 0.0,
    load: Traffic | None = None,
    prefills: PoolSnapshot | None = None,
    decodes: PoolSnapshot | None = None,
    **changes: Any,
) -> PoolsSnapshot:
    """Return a snapshot of both pools, by default with one replica each."""
    values = {
        "now_s": now_s,
        "traffic": traffic(1.0) if load is None else load,
        "prefill": prefill(prefills or pool()),
        "decode": decode(decodes or pool()),
    }
    return PoolsSnapshot(**{**values, **changes})


def sizes(decision: Decision) -> tuple[int, int]:
    """Return the targets, prefill first."""
    return decision.prefill.target, decision.decode.target


class Planner:
    """A planner that keeps its state between snapshots; replicas change only as the test says."""

    def __init__(self, settings: ScalingSettings = SETTINGS) -> None:
        settings.check()
        self.settings = settings
        self.state: ScalingState | None = None

    def plan(self, seen: PoolsSnapshot) -> Decision:
        """Plan from one snapshot."""
        decision, self.state = plan_pools(seen, self.state, self.settings)
        return decision

    def plan_for(self, seconds: int, seen: PoolsSnapshot) -> Decision:
        """Plan every second from the snapshot's time on; return the last decision."""
        for second in range(seconds + 1):
            decision = self.plan(replace(seen, now_s=seen.now_s + second))
        return decision
