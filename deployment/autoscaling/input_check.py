"""Validation of measurements before a decision."""

from collections.abc import Iterable
from dataclasses import astuple
from math import isfinite

from baton.deployment.autoscaling.moments import Moments
from baton.deployment.autoscaling.snapshot import PoolsSnapshot, Traffic

MOST, LEAST = 1e12, 1e-12  # range of any nonzero rate, time or count; values outside are measurement errors
LEAST_RATE = 1e-6  # tokens per second


def known(value: float, otherwise: float) -> float:
    """Return the measured time, or the assumed one if it is not measured yet."""
    return value if 0 < value <= MOST else otherwise


def snapshot_fault(snapshot: PoolsSnapshot) -> str | None:
    """Return why no decision is possible, or None. Without a clock or replica counts the budget cannot be kept."""
    if not isfinite(snapshot.now_s):
        return f"the clock is {snapshot.now_s}"
    for name, pool in zip(("prefill", "decode"), snapshot.pools.both(), strict=True):
        counts = (pool.num_ready, pool.num_draining, pool.num_flipping_in)
        if not _are_amounts(counts) or not all(isfinite(since_s) for since_s in pool.starting_since_s):
            return f"the {name} pool's replicas are {counts} and {pool.starting_since_s}"
    return None


def is_activity_known(snapshot: PoolsSnapshot) -> bool:
    """Return whether it can be told from the snapshot that there are no requests, whatever else is not measured yet."""
    prefill, decode = snapshot.prefill, snapshot.decode
    waits_s = (prefill.pool.oldest_wait_s, decode.pool.oldest_wait_s)
    counts = (prefill.queued_tokens, decode.num_running, decode.num_waiting)
    return _are_amounts((snapshot.traffic.requests_per_s, *waits_s, *counts))


def prefill_fault(snapshot: PoolsSnapshot) -> str | None:
    """Return why the prefill pool's need is unknown, or None."""
    prefill = snapshot.prefill
    if not LEAST_RATE <= prefill.tokens_per_s <= MOST:
        return f"its prompt tokens per second are {prefill.tokens_per_s}"
    times = (prefill.step_s, prefill.handover_s, prefill.queued_tokens, prefill.pool.oldest_wait_s)
    if not _are_amounts(times) or not 1 <= prefill.max_step_tokens <= MOST:
        return f"its step, handover, queued tokens and oldest wait are {times}"
    traffic = snapshot.traffic
    if not 0 <= traffic.remote_share <= 1:
        return f"its share of the requests is {traffic.remote_share}"
    return _traffic_fault(traffic, traffic.uncached_tokens, traffic.remote_tokens or Moments())


def decode_fault(snapshot: PoolsSnapshot) -> str | None:
    """Return why the decode pool's need is unknown, or None."""
    decode = snapshot.decode
    if decode.step_s == 0 or not _are_amounts((decode.step_s, decode.sequence_s)):
        return f"its step takes {decode.step_s} s and {decode.sequence_s} s more per sequence"
    counts = (decode.kv_tokens, decode.kv_used_tokens, decode.num_running, decode.num_waiting)
    if not _are_amounts((*counts, decode.pool.oldest_wait_s)) or not 1 <= decode.max_num_seqs <= MOST:
        return f"its KV tokens, those in use, running and waiting sequences are {counts}"
    if snapshot.traffic.requests_per_s > 0 and snapshot.traffic.output_tokens.mean == 0:
        return "no request has ended yet"
    return _traffic_fault(snapshot.traffic, snapshot.traffic.output_tokens)


def _traffic_fault(traffic: Traffic, *lengths: Moments) -> str | None:
    numbers = (traffic.requests_per_s, traffic.arrival_cv2, traffic.window_s)
    if not _are_amounts(numbers):
        return f"the requests' rate, variation and window are {numbers}"
    recent = [astuple(each) for each in traffic.recent]
    if not all(window_s > 0 and _are_amounts((window_s, num)) for window_s, num in recent):
        return f"the last seconds' lengths and arrivals are {recent}"
    for moments in (*lengths, traffic.prompt_tokens):
        if not _are_amounts((moments.mean,)) or not 0 <= moments.second <= MOST * MOST:
            return f"the requests' lengths have the moments {moments.mean} and {moments.second}"
    if traffic.requests_per_s > 0 and traffic.prompt_tokens.mean == 0:
        return "the requests' lengths are not known yet"
    return None


def _are_amounts(values: Iterable[float]) -> bool:
    return all(value == 0 or LEAST <= value <= MOST for value in values)  # False for NaN
