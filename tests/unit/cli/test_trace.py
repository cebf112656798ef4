"""`baton trace` against a real HTTP server."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from baton.__main__ import main
from tests.unit.cli.small_server import json_reply, serving

SPAN: dict[str, Any] = {"where": "router", "attributes": {}, "events": [], "error": None, "reason": ""}
TIMELINE: dict[str, Any] = {
    "request_id": "one",
    "trace_id": "0" * 31 + "1",
    "sampled": True,
    "model": "tiny",
    "begun_at": 0.0,
    "duration_s": 2.0,
    "attributes": {"gen_ai.latency.time_to_first_token": 0.25, "gen_ai.usage.output_tokens": 9},
    "spans": [
        {
            **SPAN,
            "name": "chat tiny", "depth": 0, "start_s": 0.0, "duration_s": 2.0,
            "events": [{"name": "retry", "at_s": 1.0, "attributes": {"error.type": "Lost", "baton.reason": "gone"}}],
        },
        {**SPAN, "name": "admission", "depth": 1, "start_s": 0.0, "duration_s": 0.001},
        {**SPAN, "name": "attempt", "depth": 1, "start_s": 0.001, "duration_s": 1.0, "error": "Lost", "reason": "x"},
        {
            **SPAN,
            "name": "prefill", "where": "prefill-0[/b]", "depth": 4, "start_s": 1.0, "duration_s": 0.5,
            "attributes": {"baton.computed_tokens": "128"},
        },
    ],
}  # fmt: skip


def trace(content: object, *arguments: str, code: int = 200, columns: int = 120) -> Result:
    with serving({"/timelines/one": lambda _: json_reply(content, code)}) as url:
        return CliRunner().invoke(main, ["trace", "one", "--url", url, *arguments], env={"COLUMNS": str(columns)})


def test_the_chart_shows_each_span_where_it_was() -> None:
    result = trace(TIMELINE)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0].split() == [
        *("one", "tiny", "2.000", "s", "TTFT", "250.0", "ms", "output", "tokens", "9", "trace", TIMELINE["trace_id"])
    ]
    row = next(line for line in lines if "prefill" in line)
    assert row.startswith("        prefill")
    assert row.split()[1:] == ["prefill-0[/b]", "1.000", "s", "500.0", "ms", "━" * row.count("━")]
    root = next(line for line in lines if line.startswith("chat tiny"))
    assert abs(root.count("━") - 4 * row.count("━")) <= 2  # it is rounded
    assert row.index("━") - root.index("━") == root.count("━") // 2


def test_other_requests_with_the_same_id_are_named_with_the_option_that_shows_them() -> None:
    lines = trace({**TIMELINE, "begun_at": 7.5, "same_id_begun_at": [5.25, 7.5, 9.0]}).output.splitlines()
    assert lines[1].endswith("other requests with this id: --begun-at 5.25, --begun-at 9.0")
    assert "other requests" not in trace({**TIMELINE, "begun_at": 7.5, "same_id_begun_at": [7.5]}).output


def test_a_time_chooses_among_requests_with_the_same_id() -> None:
    with serving({"/timelines/one?begun_at=5.25": lambda _: json_reply(TIMELINE)}) as url:
        result = CliRunner().invoke(main, ["trace", "one", "--begun-at", "5.25", "--url", url])
    assert result.exit_code == 0, result.output


def test_a_running_request_is_marked() -> None:
    assert "running for 2.000 s" in trace({**TIMELINE, "running": True}).output.splitlines()[0]
    assert "running" not in trace(TIMELINE).output


def test_retries_failures_and_figures_are_listed() -> None:
    output = trace(TIMELINE).output
    assert "router chat tiny: retry: Lost: gone at 1.000 s" in output
    assert "router attempt failed: Lost: x" in output
    assert "prefill-0[/b] prefill: computed 128" in output


def test_the_json_response_is_printed_as_it_is() -> None:
    assert json.loads(trace(TIMELINE, "--json").output) == TIMELINE


@pytest.mark.parametrize("content", [[], {}, {"spans": 1}])
def test_a_response_that_is_no_timeline_is_an_error(content: object) -> None:
    result = trace(content)
    assert result.exit_code == 1
    assert "not a timeline" in result.output


def test_an_unknown_request_ends_with_the_servers_text() -> None:
    result = trace({"error": {"message": "the request is unknown"}}, code=404)
    assert result.exit_code == 1
    assert "404: the request is unknown" in result.output


def test_a_narrow_terminal_gets_a_short_bar() -> None:
    assert trace(TIMELINE, columns=40).exit_code == 0
    assert trace({**TIMELINE, "spans": [], "duration_s": 0}).exit_code == 0
