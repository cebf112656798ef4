"""The share of its time that a worker spent on prompts."""

from math import exp

import pytest

from baton.protos.worker_pb2 import WorkerDescription, WorkerLoad
from baton.router.policy.cluster import WorkerRole
from baton.router.workers.load import SPAN_S, LoadEstimate, PromptShare


def test_it_is_averaged_over_the_last_seconds() -> None:
    share = PromptShare()
    share.note(5000, 1000.0, 10.0)  # the worker was there before
    assert share.value == 0.0
    share.note(5500, 1000.0, 11.0)
    assert share.value == pytest.approx(0.5 * (1 - exp(-1 / SPAN_S)))
    for second in range(12, 100):
        share.note(5500 + 500 * (second - 11), 1000.0, float(second))
    assert share.value == pytest.approx(0.5)
    share.note(share_end := 5500 + 500 * 88, 1000.0, 99.0)  # at the same moment
    share.note(share_end, 1000.0, 99.0 + 10 * SPAN_S)
    assert share.value == pytest.approx(0.0, abs=1e-4)


def test_an_unknown_rate_changes_nothing() -> None:
    share = PromptShare()
    share.note(0, 0.0, 0.0)
    share.note(500, 0.0, 1.0)
    assert share.value == 0.0


def test_it_follows_from_reports() -> None:
    load, description = LoadEstimate(), WorkerDescription(worker_id="w")
    for second in range(60):
        load.report(WorkerLoad(num_prefilled_tokens=250 * second, prefill_tokens_per_s=1000.0), [], float(second))
    assert load.snapshot(description, WorkerRole.BOTH).prompt_share == pytest.approx(0.25, rel=1e-3)
