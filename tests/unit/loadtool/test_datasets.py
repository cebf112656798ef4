"""Datasets: their requests, and errors for invalid files."""

import json
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from baton.loadtool.datasets.azure import AzureTrace
from baton.loadtool.datasets.base import Dataset
from baton.loadtool.datasets.mooncake import MooncakeTrace
from baton.loadtool.datasets.sharegpt import ShareGptConversations
from baton.loadtool.datasets.synthetic import SyntheticPrompts, SyntheticShape
from baton.loadtool.errors import DatasetError, SettingError
from baton.loadtool.lengths import Lengths
from baton.loadtool.request import LoadRequest
from baton.loadtool.vocabulary import read_vocabulary, token_range

IDS = token_range(100, 1000)
MODEL = Path(__file__).parents[3] / "baton" / "bundled_model"
TRACE = MODEL.parents[1] / "benchmarks" / "data" / "mooncake_conversation.csv"


def first_requests(dataset: Dataset, count: int, seed: int = 0) -> list[LoadRequest]:
    return list(islice(dataset.requests(seed), count))


def ids_of(request: LoadRequest) -> list[int]:
    assert not isinstance(request.prompt, str)
    return request.prompt.tolist()


def jsonl(path: Path, records: Sequence[object]) -> Path:
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path


def trace(path: Path) -> Path:
    return jsonl(
        path / "trace.jsonl",
        [
            {"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]},
            {"timestamp": 1000, "input_length": 600, "output_length": 20, "hash_ids": [0, 9]},
            {"timestamp": 5500, "input_length": 1500, "output_length": 1, "hash_ids": [0, 1, 7]},
        ],
    )


def test_only_equal_hashes_give_equal_tokens(tmp_path: Path) -> None:
    first, second, third = first_requests(MooncakeTrace(trace(tmp_path), IDS, Lengths()), 9)
    assert [each.due_s for each in (first, second, third)] == [
        0.0,
        2.0,
        4.5,
    ]  # in order of their times, from the first on
    assert [len(ids_of(each)) for each in (first, second, third)] == [600, 1100, 1500]
    assert [each.num_output_tokens for each in (first, second, third)] == [20, 7, 1]
    assert ids_of(first)[:512] == ids_of(second)[:512]
    assert ids_of(first)[512:] != ids_of(second)[512:600]
    assert ids_of(second)[:1024] == ids_of(third)[:1024]
    assert ids_of(second)[1024:] != ids_of(third)[1024:1100]


def test_sharing_does_not_depend_on_scales_limits_and_seeds(tmp_path: Path) -> None:
    dataset = MooncakeTrace(trace(tmp_path), IDS, Lengths(scale=1 / 8, max_input=100, max_output=2))
    first, second, third = first_requests(dataset, 3)
    assert [len(ids_of(each)) for each in (first, second, third)] == [75, 100, 100]
    assert [each.num_output_tokens for each in (first, second, third)] == [2, 1, 1]
    assert ids_of(first)[:64] == ids_of(second)[:64]
    assert ids_of(second) == ids_of(third)
    again = first_requests(dataset, 3)
    assert list(map(ids_of, again)) == list(map(ids_of, (first, second, third)))
    other = first_requests(dataset, 3, seed=1)
    assert ids_of(other[0]) != ids_of(first)
    assert ids_of(other[0])[:64] == ids_of(other[1])[:64]


def test_missing_hashes_of_a_prompt_are_filled_with_unique_tokens(tmp_path: Path) -> None:
    record = {"timestamp": 0, "input_length": 700, "output_length": 1, "hash_ids": [4]}
    first, second = first_requests(MooncakeTrace(jsonl(tmp_path / "t.jsonl", [record, record]), IDS, Lengths()), 2)
    assert len(ids_of(first)) == len(ids_of(second)) == 700
    assert ids_of(first)[:512] == ids_of(second)[:512]
    assert ids_of(first)[512:] != ids_of(second)[512:]


def test_the_benchmarks_trace_is_read() -> None:
    requests = first_requests(MooncakeTrace(TRACE, IDS, Lengths(scale=0.01)), 5000)
    assert len(requests) == 2200
    times = [each.due_s for each in requests]
    assert times == sorted(times, key=lambda due_s: due_s or 0.0)


def test_azures_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:50.9951690,396,109\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:51,5,0\n"
    )
    first, second, third = first_requests(AzureTrace(path, IDS, Lengths()), 9)
    assert first.due_s == 0.0
    assert second.due_s == pytest.approx(4.314579)
    assert [len(ids_of(each)) for each in (first, second, third)] == [374, 396, 5]
    assert [each.num_output_tokens for each in (first, second, third)] == [44, 109, 1]
    assert not set(map(tuple, [ids_of(first)[:20]])) & {tuple(ids_of(second)[:20])}


def conversations(path: Path) -> Path:
    long = {"conversations": [{"from": "human", "value": "word " * 500}, {"from": "gpt", "value": "No."}]}
    entries = [
        {"conversations": [{"from": "human", "value": "What is a list?"}, {"from": "gpt", "value": "A sequence."}]},
        {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Why?"},
                      {"role": "assistant", "content": "It is so."}]},
        {"conversations": [{"from": "gpt", "value": "I begin."}, {"from": "human", "value": "Ah."}]},
        {"conversations": [{"from": "human", "value": "Anybody?"}]},
        {"conversations": "broken"}, 7, long,
    ]  # fmt: skip
    path = path / "sharegpt.json"
    path.write_text(json.dumps(entries))
    return path


def test_conversations_send_their_first_question(tmp_path: Path) -> None:
    path, vocabulary = conversations(tmp_path), read_vocabulary(MODEL)
    requests = first_requests(ShareGptConversations(path, vocabulary, Lengths(max_input=100)), 9)
    assert {each.prompt for each in requests} == {"What is a list?", "Why?"}
    lengths = {each.prompt: each.num_output_tokens for each in requests}
    assert lengths["What is a list?"] == vocabulary.num_tokens("A sequence.")
    assert len(first_requests(ShareGptConversations(path, IDS, Lengths(output=12)), 9)) == 3
    with pytest.raises(SettingError, match="--tokenizer DIRECTORY"):
        ShareGptConversations(path, IDS, Lengths())


def test_synthetic_prompts_have_the_given_lengths_and_prefixes() -> None:
    shape = SyntheticShape(input_len=100, output_len=40, range_ratio=0.5, prefix_len=30, num_prefixes=3)
    requests = first_requests(SyntheticPrompts(shape, IDS, Lengths()), 600)
    inputs = np.array([len(ids_of(each)) - 30 for each in requests])
    assert (inputs.min(), inputs.max()) == (50, 150)
    assert inputs.mean() == pytest.approx(100, abs=5)
    assert {20, 60} <= {each.num_output_tokens for each in requests} <= set(range(20, 61))
    assert len({tuple(ids_of(each)[:30]) for each in requests}) == 3
    assert all(100 <= token_id <= 1000 for each in requests for token_id in ids_of(each))
    exact = first_requests(SyntheticPrompts(SyntheticShape(input_len=64, output_len=8), IDS, Lengths(max_input=50)), 5)
    assert {(len(ids_of(each)), each.num_output_tokens) for each in exact} == {(50, 8)}
    with pytest.raises(SettingError, match="random-range-ratio"):
        SyntheticShape(range_ratio=1.0)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("{", "line 1: invalid JSON"),
        ("[1]", "line 1: not a JSON object"),
        ('{"timestamp": 1}', "no input_length, output_length, hash_ids"),
        ('{"timestamp": -1, "input_length": 1, "output_length": 1, "hash_ids": []}', "timestamp is '-1'"),
        ('{"timestamp": 1, "input_length": "x", "output_length": 1, "hash_ids": []}', "input_length is 'x'"),
        ('{"timestamp": 1, "input_length": 1, "output_length": 1, "hash_ids": 3}', "hash_ids is not a list"),
        ("\n", "no requests"),
        ("\xff", "codec"),
    ],
)
def test_errors_in_traces_name_the_line(tmp_path: Path, content: str, expected: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(DatasetError, match=expected) as caught:
        MooncakeTrace(path, IDS, Lengths())
    assert "bad.jsonl" in str(caught.value)


def test_missing_and_invalid_files_are_reported(tmp_path: Path) -> None:
    for kind in (MooncakeTrace, AzureTrace):
        with pytest.raises(DatasetError, match=r"nowhere: No such file"):
            kind(tmp_path / "nowhere", IDS, Lengths())
    with pytest.raises(DatasetError, match="nowhere: No such file"):
        ShareGptConversations(tmp_path / "nowhere", IDS, Lengths(output=1))
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(DatasetError, match="must name TIMESTAMP,ContextTokens,GeneratedTokens"):
        AzureTrace(other, IDS, Lengths())
    other.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n")
    with pytest.raises(DatasetError, match="line 2: TIMESTAMP is 'yesterday'"):
        AzureTrace(other, IDS, Lengths())
    with pytest.raises(DatasetError, match="invalid JSON"):
        ShareGptConversations(other, IDS, Lengths(output=1))
