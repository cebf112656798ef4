"""Calculations of the engine comparison: floors, disturbed samples, the clients' loop, the table's ratios."""

import os
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.checkpoint.model_config import read_model_config
from benchmarks.checkpoint_floor import CheckpointFloor
from benchmarks.engines.cells import BF16, NUM_OUTPUT_TOKENS, PREFIX, SERIES, Cell, chosen_cells
from benchmarks.engines.comparison import in_turn, least_disturbed
from benchmarks.engines.contestants import CONTESTANTS, OURS, contestants_by_name
from benchmarks.engines.drivers.driver import Answer, ClosedLoop, NewTokens
from benchmarks.engines.engines_table import COLUMNS, FLOOR, CellFloor, add_rows, new_report
from benchmarks.engines.floors import Floor
from benchmarks.engines.interference import CoreTimes, Interference, between, look, parse_stat
from benchmarks.engines.samples import Agreement, Sample, Samples, agreement
from benchmarks.machine import MachineLimits
from tests.checkpoints import make_checkpoint

LIMITS = MachineLimits(read_bytes_per_s=1e9, gemm_flop_per_s=1e12)
QUIET = Interference(0.0, 0.0)


class TestFloors:
    def test_the_number_of_parameters_equals_that_of_the_files(self, tmp_path: Path) -> None:
        for name in ("qwen3", "qwen3-moe"):
            checkpoint = make_checkpoint(name, tmp_path / name)
            floor, files = Floor.of(checkpoint), CheckpointFloor.of(checkpoint)
            active = floor.shared_parameters + floor.num_experts_per_token * floor.expert_parameters
            assert active + floor.head_parameters == pytest.approx(files.active_parameters, rel=0.01)  # no norms

    def test_two_chunks_take_as_long_as_the_whole_prompt_and_later_ones_longer(self, tmp_path: Path) -> None:
        floor = Floor.of(make_checkpoint("qwen3", tmp_path))
        whole, head_s = floor.prefill_s(LIMITS, 300), 2 * floor.head_parameters / LIMITS.gemm_flop_per_s
        first, second = floor.prefill_s(LIMITS, 150), floor.prefill_s(LIMITS, 150, 150)
        assert first + second - head_s == pytest.approx(whole)
        assert second > first

    def test_a_step_is_bound_by_memory_first_and_by_products_for_large_batches(self, tmp_path: Path) -> None:
        floor = Floor.of(make_checkpoint("qwen3", tmp_path))
        weights = 2 * (floor.shared_parameters + floor.head_parameters)
        assert floor.decode_s(LIMITS, 1, 0, "bf16", "bf16") == pytest.approx(weights / 1e9)
        assert floor.decode_s(LIMITS, 1, 0, "int8", "bf16") == pytest.approx(weights / 2e9)
        one_kv = floor.decode_s(LIMITS, 1, 100, "bf16", "bf16") - weights / 1e9
        assert floor.decode_s(LIMITS, 4, 100, "bf16", "int8") - weights / 1e9 == pytest.approx(2 * one_kv)
        slow = replace(LIMITS, gemm_flop_per_s=1e9)
        assert floor.decode_s(slow, 8, 0, "bf16", "bf16") == pytest.approx(8 * weights / 1e9)

    def test_a_large_batch_reads_all_experts_and_one_request_only_its_own(self, tmp_path: Path) -> None:
        checkpoint = make_checkpoint("qwen3-moe", tmp_path)
        floor, moe = Floor.of(checkpoint), read_model_config(checkpoint).moe
        assert moe is not None
        rest = 2 * (floor.shared_parameters + floor.head_parameters)
        one, many = (floor.decode_s(LIMITS, batch, 0, "bf16", "bf16") * 1e9 - rest for batch in (1, 1000))
        assert one == pytest.approx(2 * moe.num_experts_per_token * floor.expert_parameters)
        assert many == pytest.approx(2 * moe.num_experts * floor.expert_parameters)

    def test_cached_tokens_are_computed_once(self, tmp_path: Path) -> None:
        floor = Floor.of(make_checkpoint("qwen3", tmp_path))
        limits = {"bf16": LIMITS}
        shared = CellFloor.of(floor, Cell(PREFIX, 512, 8), limits)
        plain = CellFloor.of(floor, Cell(BF16, 512, 8), limits)
        assert shared.ttft_s < plain.ttft_s / 5
        assert shared.tpot_s == plain.tpot_s
        assert shared.tokens_per_s > plain.tokens_per_s


class TestInterference:
    def test_only_busy_time_of_the_engines_cores_counts(self) -> None:
        lines = (
            "cpu 9 9 9 9 9 9 9 9 9 9",
            "cpu0 1 2 4 1000 1000 8 16 32 500 500",
            "cpu1 1 0 0 7 7 0 0 1 0 0",
            "cpu2 99 0 0 0 0 0 0 9 0 0",
        )
        text = "\n".join(lines)
        assert parse_stat(text, [0, 1]) == (1 + 2 + 4 + 8 + 16 + 1, 33)

    @pytest.mark.parametrize(
        ("others_s", "steal_s", "is_much"), [(0.0, 0.0, False), (0.5, 0.1, False), (0.7, 0.0, True), (0.0, 0.5, True)]
    )
    def test_interference_is_the_busy_time_of_other_processes(
        self, others_s: float, steal_s: float, is_much: bool
    ) -> None:
        before = CoreTimes(100.0, 50.0, 5.0, 20.0)
        after = CoreTimes(110.0, 50.0 + 15.0 + others_s, 5.0 + steal_s, 20.0 + 15.0)
        found = between(before, after, num_cores=2)
        assert found.others == pytest.approx(others_s / 20)
        assert found.steal == pytest.approx(steal_s / 20)
        assert found.is_much == is_much

    def test_a_childs_cpu_time_counts_as_own_once(self) -> None:
        cores = sorted(os.sched_getaffinity(0))
        code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
        before = look(cores)
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            child.stdout.readline()
            after = look(cores)
            child.communicate(b"\n")
        assert 0.45 <= after.ours_s - before.ours_s < 0.9
        assert after.busy_s - before.busy_s > 0.4  # the system counts by ticks

    @pytest.mark.parametrize(
        ("others", "retakes", "taken", "kept"),
        [
            ([0.01, 0.5], 3, 1, 0),  # the first is good
            ([0.5, 0.4, 0.02, 0.01], 3, 3, 2),  # the third is good
            ([0.5, 0.2, 0.4, 0.0], 2, 3, 1),  # none of the allowed retakes is good
            ([0.5, 0.0], 0, 1, 0),
        ],
    )
    def test_disturbed_samples_are_retaken_a_limited_number_of_times(
        self, others: list[float], retakes: int, taken: int, kept: int
    ) -> None:
        attempts: list[int] = []

        def take(attempt: int) -> Sample:
            attempts.append(attempt)
            return Sample([], 0, Interference(others[attempt], 0.0), seed=attempt)

        assert least_disturbed(take, retakes, pause_s=0).seed == kept
        assert attempts == list(range(taken))


class CountingEngine:
    """An engine that gives each request its next number in every step; the first after two steps."""

    version = "counting"

    def __init__(self) -> None:
        self.most_at_once = 0
        self._left: dict[int, deque[list[int]]] = {}

    def add(self, request: int, prompt: Sequence[int], num_output_tokens: int) -> None:
        tokens = [[prompt[0] + place] for place in range(num_output_tokens)]
        self._left[request] = deque([[], *tokens])
        self.most_at_once = max(self.most_at_once, len(self._left))

    def step(self) -> Iterable[NewTokens]:
        for request, left in list(self._left.items()):
            if tokens := left.popleft():
                yield NewTokens(request, tokens)
            if not left:
                del self._left[request]


class TestClosedLoop:
    def test_every_client_waits_for_its_output_and_outputs_are_in_order(self) -> None:
        engine = CountingEngine()
        loop = ClosedLoop(engine)
        for _ in range(2):  # a second run has other request numbers
            answers = loop.run([[10 * place] for place in range(5)], num_output_tokens=3, concurrency=2)
            assert [answer.token_ids for answer in answers] == [[10 * p, 10 * p + 1, 10 * p + 2] for p in range(5)]
        assert engine.most_at_once == 2
        assert all(answer.submitted_s < answer.first_s < answer.last_s for answer in answers)
        assert answers[2].submitted_s >= min(answers[0].last_s, answers[1].last_s)

    def test_more_tokens_than_requested_are_an_error(self) -> None:
        class Generous(CountingEngine):
            def step(self) -> Iterable[NewTokens]:
                return [NewTokens(0, [1, 2, 3])]

        with pytest.raises(RuntimeError, match="3 tokens received, 2 requested"):
            ClosedLoop(Generous()).run([[1]], num_output_tokens=2, concurrency=1)


class TestCells:
    def test_all_engines_get_the_same_prompts_and_each_repeat_new_ones(self) -> None:
        cell = Cell(PREFIX, 512, 8)
        prompts = cell.prompts(32000, seed=1)
        assert prompts == cell.prompts(32000, seed=1)
        assert len(prompts) == 16
        assert all(len(prompt) == 512 and prompt[:448] == prompts[0][:448] for prompt in prompts)
        assert len({tuple(prompt) for prompt in prompts}) == 16
        assert cell.prompts(32000, seed=2)[0][:448] != prompts[0][:448]

    def test_the_prefix_series_has_one_prompt_length(self) -> None:
        cells = chosen_cells(SERIES, [128, 2048], [1])
        assert [cell.prompt_len for cell in cells if cell.series is PREFIX] == [512]
        assert [cell.prompt_len for cell in cells if cell.series is BF16] == [128, 2048]

    def test_engines_take_turns_at_running_first(self) -> None:
        assert [each.name for each in in_turn(CONTESTANTS[:3], 4)] == [
            CONTESTANTS[1].name, CONTESTANTS[2].name, CONTESTANTS[0].name,
        ]  # fmt: skip

    def test_an_unknown_engine_is_named(self) -> None:
        with pytest.raises(ValueError, match="nosuch: there is no such engine, only baton"):
            contestants_by_name(["nosuch", OURS])


def samples(cell: Cell, token_ms: float, token_ids: list[int]) -> Samples:
    """Return two runs of one client with 100 ms to the first token; the second run is half as fast."""
    taken = []
    for seed, factor in enumerate((1, 2)):
        step_s = factor * token_ms / 1e3
        last_s = 0.1 + step_s * (NUM_OUTPUT_TOKENS - 1)
        taken.append(Sample([Answer(0.0, 0.1, last_s, token_ids)], 5_000_000 * factor, QUIET, seed))
    return Samples(cell, taken)


class TestTable:
    def test_rows_have_medians_and_ratios_to_the_best_peer_and_to_the_floor(self) -> None:
        cell, tokens = Cell(BF16, 128, 1), list(range(NUM_OUTPUT_TOKENS))
        report = new_report({"bf16": LIMITS})
        floor = CellFloor(0.05, 0.005, 100.0, 1000.0)
        other = [*tokens[:16], *[0] * 48]
        found = {OURS: samples(cell, 10, tokens), "fast": samples(cell, 20, tokens), "slow": samples(cell, 40, other)}
        add_rows(report, cell, floor, found)
        rows = {str(row[3]): dict(zip(COLUMNS, row, strict=True)) for row in report.rows}
        assert list(rows) == [FLOOR, OURS, "fast", "slow"]
        rates = {name: (64 / (0.1 + 0.063 * ms / 1) + 64 / (0.1 + 0.126 * ms / 1)) / 2 for name, ms in
                 ((OURS, 10), ("fast", 20), ("slow", 40))}  # fmt: skip
        for name, rate in rates.items():
            assert rows[name]["output tok/s"] == pytest.approx(rate)
            assert rows[name]["of the best peer"] == pytest.approx(rate / rates["fast"])
            assert rows[name]["of the floor"] == pytest.approx(rate / 100)
        assert rows[OURS]["TTFT p50 ms"] == pytest.approx(100)
        assert rows[OURS]["TPOT p50 ms"] == pytest.approx(15)
        assert rows[OURS]["prefill tok/s"] == pytest.approx(1280)
        assert rows[OURS]["peak MB"] == 10
        assert rows["fast"]["prefix same"] == 1.0
        assert rows["slow"]["prefix same"] == pytest.approx(16 / 64)
        assert rows["slow"]["first token same"] == 1.0

    def test_without_peers_there_is_no_ratio_to_them(self) -> None:
        cell, report = Cell(BF16, 128, 1), new_report({"bf16": LIMITS})
        add_rows(report, cell, CellFloor(0.05, 0.005, 100.0, 1000.0), {OURS: samples(cell, 10, [1] * 64)})
        assert dict(zip(COLUMNS, report.rows[1], strict=True))["of the best peer"] == ""

    def test_prompts_sent_at_once_count_until_the_last_has_a_token(self) -> None:
        cell = Cell(BF16, 100, 2)
        answers = [Answer(0.0, 1.0, 5.0), Answer(0.0, 2.0, 5.0), Answer(5.0, 5.5, 9.0)]
        assert Sample(answers, 0, QUIET, 0).prefill_tokens_per_s(cell) == pytest.approx(100)

    def test_only_prompts_of_both_engines_are_compared(self) -> None:
        assert agreement({0: [[1, 2]], 1: [[3, 4]]}, {1: [[3, 5]], 2: [[1, 2]]}) == Agreement(1.0, 0.5)
        assert agreement({0: [[1, 2]]}, {1: [[1, 2]]}) is None
