"""One line for operators that explains a decision: what is measured, what the model makes of it, and what follows."""

from baton.deployment.autoscaling.by_pool import ByPool
from baton.deployment.autoscaling.correction import warm_quantile
from baton.deployment.autoscaling.decision import Decision
from baton.deployment.autoscaling.input_check import decode_fault, prefill_fault
from baton.deployment.autoscaling.prediction.pools_model import PoolsModel
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import PoolsSnapshot, ReplicaLatency


def explain(snapshot: PoolsSnapshot, decision: Decision, settings: ScalingSettings) -> str:
    """Return the line; the decision must be that for the snapshot."""
    parts = [f"measured: {_measured(snapshot, settings)}"]
    if prefill_fault(snapshot) is None and decode_fault(snapshot) is None:
        parts.append(f"believed: {_believed(snapshot, decision, settings)}")
    needs, load = f"{decision.prefill.need} + {decision.decode.need}", decision.load
    if load is not None:
        needs += f" for {load.requests_per_s:.3g} requests/s in {load.window_s:.0f} s"
    parts.append(f"needed: {needs}, with {decision.local_share:.0%} of the prompts computed by decode workers")
    return "; ".join([*parts, decision.reason])


def _measured(snapshot: PoolsSnapshot, settings: ScalingSettings) -> str:
    traffic = snapshot.traffic
    ttft, tpot = snapshot.pools.map(lambda pool: _latency(pool.latencies, settings.warmup_s)).both()
    return (
        f"{traffic.requests_per_s:.3g} requests/s, prompts of {traffic.prompt_tokens.mean:.0f} tokens "
        f"({traffic.uncached_tokens.mean:.0f} uncached), outputs of {traffic.output_tokens.mean:.0f}, "
        f"{1 - traffic.remote_share:.0%} of the prompts computed by decode workers, "
        f"TTFT {ttft} of {settings.slo.ttft_s:g} s and TPOT {tpot} of {settings.slo.tpot_s:g} s "
        f"for {settings.slo.quantile:.0%}"
    )


def _latency(latencies: tuple[ReplicaLatency, ...], warmup_s: float) -> str:
    measured = warm_quantile(latencies, warmup_s)
    return "unknown" if measured is None else f"{measured.quantile_s:.3g}"


def _believed(snapshot: PoolsSnapshot, decision: Decision, settings: ScalingSettings) -> str:
    factors = ByPool(decision.prefill.factor, decision.decode.factor)
    model = PoolsModel.as_measured(snapshot, settings, factors)
    prefill, decode = snapshot.pools.map(lambda pool: pool.num_ready).both()
    rate = snapshot.traffic.requests_per_s
    text = f"prefill takes {factors.prefill:.2f} and decode {factors.decode:.2f} times as long as reported"
    if prefill and decode:
        ttft_s, tpot_s = model.prefill.predicted_s(prefill, rate), model.decode.predicted_s(decode, rate)
        text += f", so {prefill} + {decode} give TTFT {ttft_s:.3g} s and TPOT {tpot_s:.3g} s"
    return text
