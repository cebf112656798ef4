"""Reading of traces for the twin."""

import json
from pathlib import Path

import pytest

from baton.engine.kv.block_hash import HASH_BYTES
from baton.loadtool.errors import DatasetError, SettingError
from baton.loadtool.lengths import Lengths
from baton.simulation.study.reader import granule, read_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,4808,10
2023-11-16 18:15:50.1805900,100,27
2023-11-16 18:15:48.6805900,3180,8
"""


def mooncake(path: Path, *records: tuple[int, int, int, list[int]]) -> Path:
    lines = [
        json.dumps({"timestamp": at, "input_length": prompt, "output_length": output, "hash_ids": ids})
        for at, prompt, output, ids in records
    ]
    path.write_text("\n".join(lines))
    return path


def test_equal_hashes_are_equal_blocks(tmp_path: Path) -> None:
    trace = mooncake(
        tmp_path / "trace.jsonl", (0, 1100, 9, [1, 2, 3]), (2000, 1500, 8, [1, 2, 4]), (4000, 1024, 7, [5, 2])
    )
    first, second, third = read_trace(trace)
    assert [each.due_s for each in (first, second, third)] == [0.0, 2.0, 4.0]
    assert [each.num_prompt_tokens for each in (first, second, third)] == [1100, 1500, 1024]
    assert [each.num_output_tokens for each in (first, second, third)] == [9, 8, 7]
    assert first.block_hashes() == second.block_hashes()[:2]
    assert len(first.hashes) == 2 * HASH_BYTES  # whole blocks only
    assert not set(third.block_hashes()) & set(first.block_hashes())  # the same run after another one
    fine = read_trace(trace, block_size=16)
    assert len(fine[0].hashes) == 1100 // 16 * HASH_BYTES
    assert fine[0].block_hashes()[:64] == fine[1].block_hashes()[:64]
    assert fine[0].block_hashes()[64] != fine[1].block_hashes()[64]


def test_lengths_times_and_block_sizes_are_scaled(tmp_path: Path) -> None:
    lengths = Lengths(scale=1 / 16, max_input=60)
    assert (granule(Lengths()), granule(lengths)) == (512, 32)
    trace = mooncake(tmp_path / "trace.jsonl", (0, 512, 32, [1]), (3000, 1024, 320, [1, 2]), (9000, 512, 16, [7]))
    requests = read_trace(trace, lengths=lengths, rate_scale=2.0, seconds=4.0)
    assert [(each.due_s, each.num_prompt_tokens, each.num_output_tokens) for each in requests] == [
        (0.0, 32, 2), (1.5, 60, 20),
    ]  # fmt: skip
    assert requests[0].block_hashes() == requests[1].block_hashes()


def test_azures_prompts_share_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "azure.csv"
    trace.write_text(AZURE)
    requests = read_trace(trace)
    assert [(each.due_s, each.num_prompt_tokens) for each in requests] == [(0.0, 4808), (2.0, 3180), (3.5, 100)]
    hashes = [found for each in requests for found in each.block_hashes()]
    assert len(hashes) == len(set(hashes)) == 9 + 6


def test_an_invalid_trace_is_named(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    with pytest.raises(DatasetError, match="No such file"):
        read_trace(trace)
    for content in ("", "{}", "nonsense"):
        trace.write_text(content)
        with pytest.raises(DatasetError, match=str(trace)):
            read_trace(trace)
    mooncake(trace, (0, 100, 1, [1]))
    with pytest.raises(SettingError, match="rate-scale"):
        read_trace(trace, rate_scale=0)
    with pytest.raises(SettingError, match="no request arrives within"):
        read_trace(trace, seconds=0.0)
