"""Prompt lookup against a search of the whole text."""

import random
from collections.abc import Sequence

import pytest

from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.speculation import ngram
from baton.engine.speculation.ngram import NGramLookup, SuffixIndex


def make_request(token_ids: Sequence[int]) -> Request:
    return Request(RequestId("1"), list(token_ids), 1, SamplingParams())


def searched(token_ids: Sequence[int], shortest: int, longest: int) -> int | None:
    """The end of the latest earlier occurrence of the longest suffix."""
    for length in range(min(longest, len(token_ids) - 1), shortest - 1, -1):
        for end in range(len(token_ids) - 1, length - 1, -1):
            if token_ids[end - length : end] == token_ids[-length:]:
                return end
    return None


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 4), (2, 5), (3, 3)])
def test_the_longest_suffix_is_found_where_it_occurs_last(
    shortest: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ngram, "MAX_CANDIDATES", 1000)
    rng = random.Random(longest)
    for _ in range(20):
        index, token_ids = SuffixIndex(shortest, longest), []
        for _ in range(100):
            token_ids.append(rng.randrange(4))
            index.extend(token_ids, len(token_ids) - 1)
            assert index.find(token_ids) == searched(token_ids, shortest, longest)


def test_what_follows_the_earlier_occurrence_is_proposed() -> None:
    drafter = NGramLookup(2, 5)
    assert drafter.propose(make_request([7, 1, 2, 3, 4, 5, 9, 1, 2]), 3) == [3, 4, 5]
    assert drafter.propose(make_request([1, 2, 3, 4]), 3) == []
    assert drafter.propose(make_request([1]), 3) == []
    assert drafter.propose(make_request([1, 2, 8, 3, 1, 2, 9, 1, 2]), 1) == [9]  # the latest of equally long ones
    assert drafter.propose(make_request([5, 1, 2, 8, 3, 1, 2, 9, 5, 1, 2]), 1) == [8]  # a longer one is better


def test_a_repetition_goes_on() -> None:
    assert NGramLookup(2, 5).propose(make_request([4, 1, 2, 3, 1, 2, 3, 1, 2]), 7) == [3, 1, 2, 3, 1, 2, 3]


def test_the_index_grows_with_the_request() -> None:
    drafter, request = NGramLookup(2, 4), make_request([1, 2, 3])
    assert drafter.propose(request, 2) == []
    request.token_ids += [1, 2]
    assert drafter.propose(request, 2) == [3, 1]
    request.token_ids += [9, 1, 2]
    assert drafter.propose(request, 2) == [9, 1]


def test_a_step_indexes_a_bounded_part_of_its_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ngram, "TOKENS_PER_STEP", 20)
    rng = random.Random(0)
    prompts = [[*(rng.randrange(50, 1000) for _ in range(45)), 1, 2, 3, 4, 5, 1, 2] for _ in range(3)]
    requests = [make_request(each) for each in prompts]
    drafter = NGramLookup(2, 5)
    proposed = []
    for _ in range(9):
        drafter.begin_step()
        proposed.append([drafter.propose(each, 1) for each in requests])
        assert sum(index.next_end - 2 for index in drafter._indexes.values()) <= 20 * len(proposed)
    assert proposed == [[[]] * 3] * 2 + [[[3], [], []]] * 2 + [[[3], [3], []]] * 3 + [[[3]] * 3] * 2


def test_the_index_is_freed_with_the_request() -> None:
    drafter, request = NGramLookup(2, 5), make_request([1, 2, 3, 1, 2])
    drafter.propose(request, 1)
    assert len(drafter._indexes) == 1
    del request
    assert len(drafter._indexes) == 0
