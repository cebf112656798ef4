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
    """The moments of exponential lengths."""
    return Moments(mean, 2 * mean * mean)


def traffic(rate: float, prompt: float = 2000, output: float = 100, **changes: Any) -> Traffic:
    """Poisson arrivals of requests with exponential lengths, nothing cached."""
    values = {
        "requests_per_s": rate,
        "prompt_tokens": exponential(prompt),
        "uncached_tokens": exponential(prompt),
        "output_tokens": exponential(output),
    }
    return Traffic(**{**values, **changes})


QUIET = traffic(0.0, prompt=0, output=0)


def pool(num_ready: int = 1, **changes: Any) -> PoolSnapshot:
    """Replicas that take half a minute to start and ten seconds to drain."""
    return PoolSnapshot(**{"num_ready": num_ready, "start_s": 30.0, "drain_s": 10.0, **changes})


def prefill(replicas: PoolSnapshot, **changes: Any) -> PrefillSnapshot:
    """10,000 tokens a second: a prompt of 2,000 takes a fifth."""
    return PrefillSnapshot(**{"pool": replicas, "tokens_per_s": 10_000.0, **changes})


def decode(replicas: PoolSnapshot, **changes: Any) -> DecodeSnapshot:
    """41 sequences in steps of 50 ms."""
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
    """Both pools, one replica each unless said otherwise."""
    values = {
        "now_s": now_s,
        "traffic": traffic(1.0) if load is None else load,
        "prefill": prefill(prefills or pool()),
        "decode": decode(decodes or pool()),
    }
    return PoolsSnapshot(**{**values, **changes})


def sizes(decision: Decision) -> tuple[int, int]:
    """The targets, prefill first."""
    return decision.prefill.target, decision.decode.target


class Looker:
    """Looks at snapshots in turn and remembers the state; replicas change only as the test says."""

    def __init__(self, settings: ScalingSettings = SETTINGS) -> None:
        settings.check()
        self.settings = settings
        self.state: ScalingState | None = None

    def look(self, seen: PoolsSnapshot) -> Decision:
        """One look."""
        decision, self.state = plan_pools(seen, self.state, self.settings)
        return decision

    def look_for(self, seconds: int, seen: PoolsSnapshot) -> Decision:
        """A look every second, from the snapshot's time on; the last decision."""
        for second in range(seconds + 1):
            decision = self.look(replace(seen, now_s=seen.now_s + second))
        return decision
