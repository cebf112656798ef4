"""Dispatch of tokens to experts on other ranks: rows sent, replicas chosen, and results returned."""

import pytest
import torch

from baton.engine.experts.dispatch import ExpertRoutes, GroupExchange
from baton.engine.parallel.rank_group import RankGroup
from tests.unit.engine.group_rig import CPU, on_ranks

FEW = 64  # tokens on all ranks together
HIDDEN = 16
TOKEN_BYTES = HIDDEN * 4 + 4  # as sent: fp32, and the id of the selected replica
ROW_BYTES = HIDDEN * 4
COUNT_BYTES = 8  # the number of tokens that follow


def sent_bytes(num_tokens: list[int], chosen: list[int]) -> list[int]:
    """Return the bytes that each rank sends in a layer with one expert per rank, if all its tokens go to `chosen`."""

    def compute(ranks: RankGroup) -> int:
        exchange = GroupExchange(ranks, 2, CPU)
        exchange.routes, exchange.num_slots = ExpertRoutes(2, [[0], [1]], CPU), 1
        ranks.num_tokens = num_tokens
        before, rank = ranks.num_sent_bytes, ranks.view.rank
        x = torch.randn(num_tokens[rank], HIDDEN, generator=torch.Generator().manual_seed(rank))
        dispatch = exchange.dispatch(x, torch.full((len(x), 1), chosen[rank]))
        arrived = dispatch.receive()
        assert torch.equal(dispatch.combine(2 * arrived.rows, torch.full((len(x), 1), 0.5)), x)
        assert exchange.num_rows == sum(n for n, expert in zip(num_tokens, chosen, strict=True) if expert == rank)
        return ranks.num_sent_bytes - before

    return on_ranks(2, compute)


@pytest.mark.parametrize("first", [0, 1, FEW // 2, FEW])
def test_few_tokens_go_to_all_ranks_at_once(first: int) -> None:
    num_tokens = [first, FEW - first]
    assert sent_bytes(num_tokens, chosen=[0, 1]) == [num * TOKEN_BYTES for num in num_tokens]


@pytest.mark.parametrize("first", [0, 1, FEW // 2, FEW + 1])
def test_more_tokens_go_only_to_the_ranks_of_their_experts(first: int) -> None:
    num_tokens = [first, FEW + 1 - first]
    assert sent_bytes(num_tokens, chosen=[0, 1]) == [COUNT_BYTES, COUNT_BYTES]  # each rank has its expert itself
    there_and_back = [
        COUNT_BYTES + ours * TOKEN_BYTES + theirs * ROW_BYTES for ours, theirs in (num_tokens, reversed(num_tokens))
    ]
    assert sent_bytes(num_tokens, chosen=[1, 0]) == there_and_back


def test_an_experts_tokens_go_to_its_replicas_in_turn() -> None:
    routes = ExpertRoutes(4, [[0, 1], [2, 0], [0, 3]], CPU)  # replica 2 * rank + slot
    chosen = torch.tensor([[0, 1]] * 7)
    assert routes.of(chosen, 0)[:, 0].tolist() == [0, 3, 4, 0, 3, 4, 0]
    assert routes.of(chosen, 0)[:, 1].tolist() == [1] * 7  # the only replica
    starts = [routes.of(chosen, rank)[0, 0].item() for rank in range(4)]
    assert starts == [0, 3, 4, 0]  # each rank begins with another one, since most steps have few tokens


def test_replicas_compute_equal_numbers_of_tokens() -> None:
    def num_rows(ranks: RankGroup) -> int:
        exchange = GroupExchange(ranks, 2, CPU)
        exchange.routes, exchange.num_slots = ExpertRoutes(2, [[0, 1], [1, 0], [0, 1]], CPU), 2
        ranks.num_tokens = [4, 4, 4]  # no multiple of 3: each rank begins with another replica
        x = torch.randn(ranks.num_tokens[ranks.view.rank], HIDDEN)
        dispatch = exchange.dispatch(x, torch.zeros(len(x), 1, dtype=torch.int64))
        assert torch.equal(dispatch.combine(dispatch.receive().rows, torch.ones(len(x), 1)), x)
        return exchange.num_rows

    assert on_ranks(3, num_rows) == [4, 4, 4]


def test_an_expert_without_a_rank_is_named() -> None:
    with pytest.raises(ValueError, match=r"no rank has experts \[1, 3\]"):
        ExpertRoutes(4, [[0], [2]], CPU)
