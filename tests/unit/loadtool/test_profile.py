"""Profiles, to which the twin fits its step times."""

import json

import pytest

from baton.loadtool.profile import FORMAT, profile, profile_file
from baton.loadtool.record import ServedPath
from tests.unit.loadtool.measured_runs import completed, failed, run_of


def test_requests_have_the_mean_concurrency_during_their_phases() -> None:
    path = ServedPath("p0", "d0", "tcp", 16, 40)
    first = run_of(
        completed(0.0, (1.0, 2.0, 4.0), num_cached_tokens=4, path=path),
        completed(0.5, (1.5, 3.5), num_cached_tokens=0),
        failed(503, "status 503"),
    )
    second = run_of(completed(0.0, (1.0,), path=path, num_prompt_tokens=20), completed())
    one, two, three = profile([first, second])
    assert (one.run, one.prompt_tokens, one.cached_tokens, one.uncached_tokens, one.output_tokens) == (0, 10, 4, 6, 3)
    assert (one.ttft_s, one.tpot_s) == (1.0, 1.5)
    assert one.prefilling_while_prefill == pytest.approx(1.5)  # the second request for half of the time
    assert one.decoding_while_prefill == 0
    assert one.prefilling_while_decode == pytest.approx(1 / 3)
    assert one.decoding_while_decode == pytest.approx(1 + 2 / 3)
    assert two.decoding_while_prefill == pytest.approx(1 / 1.5)
    assert (two.handed_over_tokens, two.prefill_worker) == (0, "")
    assert (three.run, three.cached_tokens, three.uncached_tokens) == (1, 16, 4)  # from the headers
    assert (three.tpot_s, three.handed_over_tokens, three.kv_transport) == (None, 40, "tcp")


def test_the_file_names_its_format() -> None:
    requests = profile([run_of(completed(num_cached_tokens=0))])
    content = json.loads(
        json.dumps(profile_file(requests, "m", "http://x/v1/completions", "2026-01-01T00:00:00+00:00"))
    )
    assert (content["format"], content["model"]) == (FORMAT, "m")
    assert content["requests"][0]["uncached_tokens"] == 10
