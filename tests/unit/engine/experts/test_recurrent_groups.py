"""Experts shared by ranks of a model with recurrent layers: a step that is broken off is not repeated on its states."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from baton.engine.errors import GroupBroken
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case
from tests.unit.engine.experts.test_expert_group import alone, make_requests
from tests.unit.engine.group_rig import Rank, Ranks

OPTIONS = {"dtype": "float32", "max_num_batched_tokens": 40, "max_num_seqs": 8, "state_checkpoint_tokens": 32}


class BreakingRun:
    """Computes a rank's steps, some of which its group breaks off after they have changed states."""

    def __init__(self, rank: Rank, *broken: int) -> None:
        """broken: numbers of those steps."""
        self._run = rank.engine.runner.run
        self._broken = broken
        self.num_steps = 0

    def __call__(self, scheduled: Sequence[ScheduledRequest]) -> list[StepResult]:
        results, self.num_steps = self._run(scheduled), self.num_steps + 1
        if self.num_steps in self._broken:
            raise GroupBroken("a collective failed")
        return results


@pytest.fixture(params=["qwen3-next", *map(slow_case, ("granite-hybrid-moe", "nemotron-h-moe"))])
def group(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ranks]:
    ranks = Ranks(make_checkpoint(request.param, tmp_path / "model"), ["rank-0", "rank-1"], **OPTIONS)
    yield ranks
    ranks.close()


def test_requests_of_a_step_that_is_broken_off_go_on_with_the_same_tokens(
    group: Ranks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = group["rank-0"]
    breaking = BreakingRun(first, 4, 9, 11)
    monkeypatch.setattr(first.engine.runner, "run", breaking)
    first.add(*make_requests(1, 4))
    group["rank-1"].add(*make_requests(2, 3))
    outputs = group.wait_for_all()
    assert breaking.num_steps > 11
    assert first.engine.scheduler.num_preemptions > 0
    for seed, count in ((1, 4), (2, 3)):
        expected = alone(tmp_path / "model", make_requests(seed, count), **OPTIONS)
        tokens = {name: [each.token_id for each in outputs[name]] for name in expected}
        assert tokens == {name: [each.token_id for each in sampled] for name, sampled in expected.items()}


@pytest.mark.slow
def test_a_rank_that_is_lost_costs_no_token(group: Ranks, tmp_path: Path) -> None:
    group["rank-0"].add(*make_requests(1, 4))
    group["rank-0"].wait(lambda rank: any(rank.outputs.values()))
    group.lose("rank-1")
    outputs = group.wait_for_all()
    expected = alone(tmp_path / "model", make_requests(1, 4), **OPTIONS)
    tokens = {name: [each.token_id for each in sampled] for name, sampled in outputs.items()}
    assert tokens == {name: [each.token_id for each in sampled] for name, sampled in expected.items()}
