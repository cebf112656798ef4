"""Forged wakes: those for any round but the next are ignored, and one for the next round costs an empty round."""

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from baton.engine.parallel.lockstep import is_next_round
from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.unit.engine.group_rig import TIMEOUT_S, Rank, Ranks

MOST = (1 << 64) - 1  # of both fields of a wake


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("mixtral", tmp_path_factory.mktemp("mixtral") / "model")


@pytest.fixture
def group(mixtral: Path) -> Iterator[Ranks]:
    """Two ranks that sleep."""
    ranks = Ranks(mixtral, ["rank-0", "rank-1"], dtype="float32")
    wait_until_asleep(ranks)
    yield ranks
    ranks.close()


def wait_until(is_true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while not is_true():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def round_of(rank: Rank) -> int:
    """Return the number of agreements that the rank has begun."""
    assert rank.engine.lockstep is not None
    return rank.engine.lockstep._round


def wait_until_asleep(group: Ranks) -> None:
    wait_until(lambda: all(round_of(rank) > 0 and not rank.engine.must_step for rank in group.ranks.values()))
    assert len({round_of(rank) for rank in group.ranks.values()}) == 1


def serve(rank: Rank, name: str) -> None:
    """Run a request on the rank to its end."""
    prompt = random.Random(name).choices(range(3, VOCAB_SIZE), k=5)
    sampling = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    rank.add(Request(RequestId(name), prompt, len(prompt), sampling))
    rank.wait_for_all()


@pytest.mark.parametrize(
    ("epoch", "round_number", "expected"),
    [
        (3, 8, True),
        (3, 7, False),  # that round has begun
        (3, 9, False),
        (3, 0, False),
        (3, MOST, False),
        (2, 8, False),
        (4, 8, False),
        (4, 1, False),
        (0, 0, False),
        (MOST, 8, False),
        (MOST, MOST, False),
    ],
)
def test_only_a_wake_for_the_next_round_counts(epoch: int, round_number: int, expected: bool) -> None:
    assert is_next_round(epoch, round_number, current_epoch=3, current_round=7) is expected


def test_a_rank_sleeps_through_forged_wakes_and_still_takes_part(group: Ranks) -> None:
    victim, other = group["rank-0"], group["rank-1"]
    epoch, current = group.group.epoch, round_of(victim)
    for forged in [(MOST, MOST), (MOST, current + 1), (epoch, MOST), (epoch, current + 2), (epoch + 1, 1), (0, 0)]:
        assert not victim.call(lambda engine, forged=forged: (engine.woken(*forged), engine.must_step)[1]).result()  # type: ignore[misc]
    assert round_of(victim) == current
    serve(other, "a")  # the victim responds to a genuine wake, as before
    wait_until_asleep(group)
    serve(victim, "b")


def test_a_forged_wake_for_the_next_round_costs_one_empty_round(group: Ranks) -> None:
    """The rank waits for the others, and wakes them after a while, since no rank has."""
    victim, epoch, current = group["rank-0"], group.group.epoch, round_of(group["rank-0"])
    victim.call(lambda engine: engine.woken(epoch, current + 1))
    wait_until(lambda: round_of(group["rank-1"]) == current + 1)
    wait_until_asleep(group)
    assert round_of(victim) == current + 1
    assert group.group.wakes == [("rank-0", epoch, current + 1)]
    serve(victim, "a")
    wait_until_asleep(group)
    serve(group["rank-1"], "b")
