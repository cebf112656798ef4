"""Sizes that a pool needs for its load."""

from dataclasses import dataclass, replace
from math import ceil, hypot, inf, sqrt

from baton.deployment.autoscaling.backlog import Backlog
from baton.deployment.autoscaling.input_check import known
from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.prediction.decode_model import DecodeModel
from baton.deployment.autoscaling.prediction.pool_model import PoolModel, smallest_size
from baton.deployment.autoscaling.prediction.prefill_model import PrefillModel, seconds_per_token
from baton.deployment.autoscaling.settings import ScalingSettings
from baton.deployment.autoscaling.snapshot import DecodeSnapshot, PoolsSnapshot, Traffic

CHANCE_DEVIATIONS = 2  # standard deviations of a measured load that count as chance


@dataclass(frozen=True, slots=True)
class Need:
    """Needed sizes, with the reason."""

    least: int  # smallest size that holds the SLO and clears the queue
    sure: int  # the same for a load lower by `chance`
    keep: int  # the same for a load higher by `chance` and the margin together
    queue: int  # smallest size that clears the queue at the lower load; 0: the ready replicas are enough
    why: str  # reason for `least`
    chance: float = 0.0  # relative error of the measured load by chance
    model: PoolModel | None = None  # None: unknown, the sizes are the current ones
    factor: float = 1.0  # correction of the model by measured latencies
    prompt_token_s: float = 0.0  # prompt tokens times seconds until the first token, if the pool has `least` replicas

    @classmethod
    def unknown(cls, size: int, fault: str, factor: float) -> "Need":
        """Return a need for the current size, with the correction up to now."""
        return cls(size, size, size, 0, fault, factor=factor)

    def within(self, least: int, most: int) -> "Need":
        """Return the need clamped to the limits."""
        lowest, sure, keep = (max(least, min(size, most)) for size in (self.least, self.sure, self.keep))
        return replace(self, least=lowest, sure=sure, keep=keep)


def prefill_need(
    snapshot: PoolsSnapshot, settings: ScalingSettings, factor: float, most: int, model: PrefillModel | None = None
) -> Need:
    """Return the prefill replicas needed for TTFT, from the request rate, the queue and the oldest wait."""
    traffic, prefill, slo = snapshot.traffic, snapshot.prefill, settings.slo
    model = model or PrefillModel.of(traffic, prefill, slo, factor)
    backlog = Backlog(
        queued=prefill.queued_tokens * factor * seconds_per_token(prefill),
        arriving_per_s=model.share * traffic.requests_per_s * model.service.mean,
        done_per_s=1.0,  # seconds of work per second
    )
    start_s = known(prefill.pool.start_s, settings.start_s)
    chance = load_chance(traffic, model.service)
    queue_need = backlog.need(prefill.pool, snapshot.now_s, start_s, slo.ttft_s, most)
    sure_queue = backlog.lowered(chance).need(prefill.pool, snapshot.now_s, start_s, slo.ttft_s, most)
    need = _need(traffic.requests_per_s, chance, model, queue_need, sure_queue, settings.margin, most)
    ttft_s = model.predicted_s(need.least, traffic.requests_per_s)
    why = need.why or f"with {need.least} the TTFT quantile is {ttft_s:.3g} s"
    prompt_token_s = model.prompt_token_s(traffic.prompt_tokens, need.least, traffic.requests_per_s)
    return replace(need, why=why, factor=factor, prompt_token_s=prompt_token_s)


def decode_need(
    snapshot: PoolsSnapshot,
    settings: ScalingSettings,
    factor: float,
    most: int,
    prompt_token_s: float,
    model: DecodeModel | None = None,
    recent: Traffic | None = None,
) -> Need:
    """Return the decode replicas needed for TPOT and KV, from the request rate and the waiting sequences.

    `recent`: the traffic in which outputs ended, if it is another one. Running sequences limit only how far the pool
    may shrink.
    """
    traffic, decode, slo = snapshot.traffic, snapshot.decode, settings.slo
    model = model or DecodeModel.of(traffic, decode, settings, factor, prompt_token_s)
    done_per_s = min(model.full_rate(1), full_pool_rate(recent or traffic, decode, settings))
    backlog = Backlog(decode.num_waiting, traffic.requests_per_s, done_per_s)
    start_s = known(decode.pool.start_s, settings.start_s)
    chance = load_chance(traffic, traffic.output_tokens)
    queue_need = backlog.need(decode.pool, snapshot.now_s, start_s, slo.ttft_s, most)
    sure_queue = backlog.lowered(chance).need(decode.pool, snapshot.now_s, start_s, slo.ttft_s, most)
    need = _need(traffic.requests_per_s, chance, model, queue_need, sure_queue, settings.margin, most)
    keep = max(need.keep, ceil((decode.num_running + decode.num_waiting) / model.places))
    tpot_s = model.predicted_s(need.least, traffic.requests_per_s)
    why = need.why or f"with {need.least} the TPOT quantile is {tpot_s:.3g} s, {model.places} sequences fit on each"
    return replace(need, keep=keep, why=why, factor=factor)


def full_pool_rate(traffic: Traffic, decode: DecodeSnapshot, settings: ScalingSettings) -> float:
    """Return the measured completions per second of each replica of a saturated pool; infinite if not saturated.

    A pool whose sequences wait for longer than TTFT is at its limit, whatever the model predicts: prompts that it
    prefills itself take part of its time. Completions during warmup count, but warmup time does not.
    """
    warm_s = [max(0.0, min(traffic.window_s, each.ready_for_s - settings.warmup_s)) for each in decode.pool.latencies]
    if not traffic.num_ended or not sum(warm_s):
        return inf
    rate = traffic.num_ended / sum(warm_s)
    return rate if decode.num_waiting > settings.slo.ttft_s * rate * decode.pool.num_ready else inf


def _need(
    rate: float,
    chance: float,
    model: PoolModel,
    queue_need: int,
    sure_queue: int,
    margin: float,
    most: int,
) -> Need:
    """Return the sizes for a rate. `why` is empty if the rate, not the queue, determines `least`."""
    by_rate = smallest_size(model, rate, 1, most)
    sure = smallest_size(model, rate * (1 - chance), 1, by_rate)
    keep = smallest_size(model, rate * (1 + hypot(chance, margin)), by_rate, most)  # independent, so squares add up
    why = "the queue left after a replica start has to be cleared" if queue_need > by_rate else ""
    return Need(max(queue_need, by_rate), max(sure_queue, sure), max(queue_need, keep), sure_queue, why, chance, model)


def load_chance(traffic: Traffic, amounts: Moments) -> float:
    """Return the relative error of a measured load by chance, at most 1.

    The work that arrives in a window is a random sum: for N requests on average, its relative variance is
    (ca2 + cs2) / N (Feller, An Introduction to Probability Theory, 1968). A pool's part of the load is as certain as
    the whole, because it is planned from all requests.
    """
    num_requests = traffic.requests_per_s * traffic.window_s
    if num_requests <= 0:
        return 1.0
    return min(1.0, CHANCE_DEVIATIONS * sqrt((traffic.arrival_cv2 + amounts.cv2) / num_requests))
