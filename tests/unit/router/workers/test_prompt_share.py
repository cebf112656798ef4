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
    assert share.value == pytest.approx(0.5)  # of all the time that is known
    share.note(5500, 1000.0, 11.0 + SPAN_S)
    first, second = (1 - exp(-1 / SPAN_S)) * exp(-1), 1 - exp(-1)
    assert share.value == pytest.approx(0.5 * first / (first + second))
    for number in range(1, 90):
        share.note(5500 + 500 * number, 1000.0, 11.0 + SPAN_S + number)
    assert share.value == pytest.approx(0.5)
    share.note(share_end := 5500 + 500 * 90, 1000.0, 100.0 + SPAN_S)  # at the same moment
    share.note(share_end, 1000.0, 100.0 + 11 * SPAN_S)
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
