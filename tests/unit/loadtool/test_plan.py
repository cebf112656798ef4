"""A run's requests: their bodies and sending times."""

import json
from pathlib import Path
from typing import Any

import pytest

from baton.loadtool.arrivals import Arrivals, MaxConcurrency, RequestRate, TraceTimes
from baton.loadtool.datasets.azure import AzureTrace
from baton.loadtool.datasets.synthetic import SyntheticPrompts, SyntheticShape
from baton.loadtool.errors import SettingError
from baton.loadtool.lengths import Lengths
from baton.loadtool.plan import Limits, PlannedRequest, Planner
from baton.loadtool.target import CHAT, Target
from baton.loadtool.vocabulary import Vocabulary, read_vocabulary, token_range

IDS = token_range(100, 1000)
MODEL = Path(__file__).parents[3] / "baton" / "bundled_model"
SHAPE = SyntheticShape(input_len=10, output_len=4)
TARGET = Target(base_url="https://user@host:8443/api", model="m", takes_token_ids=True, headers={"x-team": "search"})


def synthetic(target: Target = TARGET, vocabulary: Vocabulary = IDS) -> Planner:
    return Planner(SyntheticPrompts(SHAPE, vocabulary, Lengths()), target, vocabulary)


def planned(planner: Planner, arrivals: Arrivals, limits: Limits, seed: int = 0) -> list[PlannedRequest]:
    return list(planner.plan(arrivals, limits, seed))


def body_of(request: PlannedRequest) -> dict[str, Any]:
    body = json.loads(request.payload.partition(b"\r\n\r\n")[2])
    assert isinstance(body, dict)
    return body


def test_the_body_of_a_request() -> None:
    (request,) = planned(synthetic(), MaxConcurrency(1), Limits(1))
    head, _, body = request.payload.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[:2] == ["POST /api/v1/completions HTTP/1.1", "host: host:8443"]
    assert {"x-team: search", f"content-length: {len(body)}"} <= set(lines)
    fields = body_of(request)
    assert len(fields.pop("prompt")) == request.num_prompt_tokens == 10
    assert fields == {
        "model": "m",
        "max_tokens": 4,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }


def test_extra_fields_replace_default_fields() -> None:
    target = Target(base_url="http://h", model="m", takes_token_ids=True, extra_body={"ignore_eos": None, "top_p": 0.5})
    (request,) = planned(synthetic(target), MaxConcurrency(1), Limits(1))
    assert body_of(request)["top_p"] == 0.5
    assert "ignore_eos" not in body_of(request)


def test_a_chat_is_text_of_the_same_length() -> None:
    vocabulary = read_vocabulary(MODEL)
    target = Target(base_url="http://h", path=CHAT, model="m")
    (request,) = planned(synthetic(target, vocabulary), MaxConcurrency(1), Limits(1))
    (message,) = body_of(request)["messages"]
    assert message["role"] == "user"
    assert vocabulary.num_tokens(message["content"]) == 10
    with pytest.raises(SettingError, match="--tokenizer DIRECTORY"):
        planned(synthetic(target), MaxConcurrency(1), Limits(1))


def test_limits_end_a_run() -> None:
    planner = synthetic()
    due = [each.due_s for each in planned(planner, RequestRate(100.0), Limits(duration_s=5.0))]
    assert 400 < len(due) < 600
    assert all(due_s is not None and due_s < 5.0 for due_s in due)
    assert len(planned(planner, RequestRate(100.0), Limits(7, 5.0))) == 7
    assert [each.due_s for each in planned(planner, RequestRate(float("inf")), Limits(3))] == [0.0] * 3
    assert [each.due_s for each in planned(planner, MaxConcurrency(2), Limits(3))] == [None] * 3
    endless = iter(planner.plan(MaxConcurrency(2), Limits(duration_s=1.0), 0))
    assert next(endless) != next(endless)
    with pytest.raises(SettingError, match="--num-prompts"):
        planned(planner, RequestRate(float("inf")), Limits(duration_s=1.0))


def test_each_seed_has_its_own_prompts() -> None:
    first, again, other = (planned(synthetic(), MaxConcurrency(1), Limits(4), seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_traces_times_are_scaled(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    rows = "".join(f"2023-11-16 18:15:{second:02},5,2\n" for second in range(10, 20))
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows)
    planner = Planner(AzureTrace(path, IDS, Lengths()), TARGET, IDS)
    due = [each.due_s for each in planned(planner, TraceTimes(0.5), Limits(duration_s=3.0))]
    assert due == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    assert len(planned(planner, RequestRate(5.0), Limits(100))) == 10  # the run ends with the trace
    with pytest.raises(SettingError, match="synthetic has no times"):
        planned(synthetic(), TraceTimes(), Limits(1))


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8000", "ftp://h", "http://", "http://h:x", "http://h:99999", "http://h:0", "http://[::1"]
)
def test_urls_are_checked(url: str) -> None:
    with pytest.raises(SettingError, match="--url"):
        Target(base_url=url)


def test_headers_are_checked() -> None:
    with pytest.raises(SettingError, match="the header 'a'"):
        Target(base_url="http://h", headers={"a": "b\r\nx: y"})
