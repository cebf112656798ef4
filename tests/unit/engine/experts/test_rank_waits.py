"""Waits of expert-parallel ranks for each other, as the watchdog of each counts them."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from baton.engine.engine import Engine
from baton.engine.scheduling.schedule import ScheduledRequest, StepResult
from tests.checkpoints import make_checkpoint
from tests.unit.engine.experts.test_expert_group import make_request, wait_until
from tests.unit.engine.group_rig import TIMEOUT_S, Ranks


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("mixtral", tmp_path_factory.mktemp("mixtral") / "model")


@contextmanager
def two_ranks(model: Path, fewest: int = 1) -> Iterator[Ranks]:
    group = Ranks(model, ["rank-0", "rank-1"], fewest=fewest, dtype="float32")
    try:
        yield group
    finally:
        group.close()


def test_a_long_shortage_of_ranks_does_not_count_in_the_next_step(mixtral: Path) -> None:
    """The shortage and the step are one turn of the engine's loop, for which the watchdog would end the process."""
    with two_ranks(mixtral, fewest=2) as group:
        rank = group["rank-0"]
        rank.add(make_request("a", 1, 5, 60))
        rank.wait(lambda rank: any(rank.outputs.values()))
        group.lose("rank-1")
        wait_until(lambda: rank.engine.is_short_of_ranks)
        began_s = time.monotonic()
        wait_until(lambda: time.monotonic() > began_s + 1)
        turns_s: list[float] = []
        run = rank.engine.runner.run

        def timed_run(scheduled: Sequence[ScheduledRequest]) -> list[StepResult]:
            turns_s.append(rank.turn_s)
            return run(scheduled)

        rank.engine.runner.run = timed_run  # type: ignore[method-assign]  # the real one, observed
        group.join("rank-2")
        rank.wait_for_all()
        assert turns_s[0] < 1


def test_who_waits_for_a_rank_outlasts_it(mixtral: Path) -> None:
    """The rank that hangs is to be ended by its own watchdog, before those of the others end them."""
    with two_ranks(mixtral) as group:
        hanging, waiting = group["rank-1"], group["rank-0"]
        for rank in group.ranks.values():
            rank.wait(lambda rank: not rank.engine.must_step)
        assert waiting.engine.watchdog_multiplier == 1
        begun, end = threading.Event(), threading.Event()

        def hang(_: Engine) -> bool:
            begun.set()
            return end.wait(TIMEOUT_S)

        hung = hanging.call(hang)
        assert begun.wait(TIMEOUT_S)
        try:
            waiting.add(make_request("a", 1, 5, 2))
            wait_until(lambda: waiting.engine.watchdog_multiplier == 2)
            assert hanging.engine.watchdog_multiplier == 1
            wait_until(lambda: hanging.turn_s > 0.2)
            assert waiting.turn_s < 0.75 * hanging.turn_s
        finally:
            end.set()
        assert hung.result(TIMEOUT_S)
        group.wait_for_all()
        wait_until(lambda: waiting.engine.watchdog_multiplier == 1)  # asleep again


def test_who_forms_an_epoch_has_much_time(mixtral: Path) -> None:
    with two_ranks(mixtral) as group:
        group.group.set_members("rank-0", "rank-1", "somebody who does not come")
        for rank in group.ranks.values():
            wait_until(lambda rank=rank: rank.engine.watchdog_multiplier == 30)  # type: ignore[misc]
        group.group.set_members("rank-0", "rank-1")
        for rank in group.ranks.values():
            wait_until(lambda rank=rank: rank.engine.watchdog_multiplier == 1)  # type: ignore[misc]
