"""Suffix decoding against a search of all texts, its bounds, and what tenants share."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from baton.engine.request import Request, RequestId, RequestStatus
from baton.engine.sampling.params import SamplingParams
from baton.engine.speculation.suffix import history as suffix_history
from baton.engine.speculation.suffix import lookup as suffix_lookup
from baton.engine.speculation.suffix import store as suffix_store
from baton.engine.speculation.suffix.history import END, MAX_LENGTHS, WINDOWS, SuffixLimits, TokenHistory
from baton.engine.speculation.suffix.lookup import TOKENS_PER_STEP, SuffixLookup
from baton.engine.speculation.suffix.store import OutputStore
from baton.settings.values import parse_json
from tests.checkpoints import make_checkpoint
from tests.unit.engine.speculation.speculation_rig import engine_of, run

LIMITS = SuffixLimits(depth=24, spec_factor=1.0, min_probability=0.1)
SUFFIX = parse_json('{"method": "suffix", "num_speculative_tokens": 6}')


def make_request(prompt: Sequence[int], output: Sequence[int] = (), salt: str = "") -> Request:
    sampling = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    return Request(RequestId(str(id(prompt))), [*prompt, *output], len(prompt), sampling, cache_salt=salt)


def searched(text: Sequence[int], suffix: Sequence[int], limit: int, limits: SuffixLimits) -> tuple[list[int], float]:
    """Return the best draft and its score, by comparing every place of a text that ends with its suffix, or an END."""
    lengths = {}
    for place in range(1, len(text)):
        length = 0
        while length < min(limits.longest, place, len(suffix)) and text[place - 1 - length] == suffix[-1 - length]:
            length += 1
        lengths[place] = length
    window = next((window for window in WINDOWS if max(lengths.values(), default=0) >= window), None)
    if window is None:
        return [], 0.0
    best: tuple[list[int], float] = [], 0.0
    matches = {place: length for place, length in lengths.items() if length >= window}
    for length in sorted(set(matches.values()), reverse=True)[:MAX_LENGTHS]:
        found = followed(text, [place for place, each in matches.items() if each >= length], length, limit, limits)
        if found[1] > best[1]:
            best = found
    return best


def followed(
    text: Sequence[int], places: Iterable[int], match_len: int, limit: int, limits: SuffixLimits
) -> tuple[list[int], float]:
    draft: list[int] = []
    probability, score = 1.0, 0.0
    alive = sorted(places, reverse=True)
    while len(draft) < min(limit, int(match_len * limits.spec_factor), limits.depth - match_len):
        whole = [*text, *draft]
        token_id, count = Counter(whole[place + len(draft)] for place in alive).most_common(1)[0]
        probability *= count / len(alive)
        if token_id == END or probability < limits.min_probability:
            break
        alive = [place for place in alive if whole[place + len(draft)] == token_id]
        draft.append(token_id)
        score += probability
    return draft, score


@pytest.mark.parametrize("limits", [LIMITS, SuffixLimits(10, 2.0, 0.4), SuffixLimits(6, 0.5, 0.9)])
def test_own_tokens_are_followed_as_a_search_finds(limits: SuffixLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_history, "MAX_CANDIDATES", 10_000)
    rng = random.Random(1)
    num_found = 0
    for alphabet in (2, 3, 6):
        history, token_ids = TokenHistory(), [0]
        for _ in range(150):
            found = history.draft(token_ids, 9, limits, token_ids[history.end :])
            draft, score = searched(token_ids, token_ids, 9, limits)
            assert (found.token_ids or [], found.score) == (draft, pytest.approx(score))
            num_found += bool(draft)
            history.append(token_ids[-1:])
            token_ids.append(rng.randrange(alphabet))
    assert num_found > 100


def test_outputs_are_followed_as_a_search_finds_also_when_the_oldest_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_history, "MAX_CANDIDATES", 10_000)
    rng = random.Random(2)
    store, texts = OutputStore(5), []
    num_found = 0
    for _ in range(60):
        texts.append([rng.randrange(3) for _ in range(rng.randint(1, 30))])
        store.add("", texts[-1])
        while store.index(7):
            pass
        stored = [token_id for text in texts[-5:] for token_id in (*text, END)]
        assert len(store) == min(len(texts), 5)
        assert store.num_tokens == len(stored)
        history = store.history("")
        assert history is not None
        for _ in range(5):
            token_ids = [rng.randrange(3) for _ in range(20)]
            found = history.draft(token_ids, 9, LIMITS)
            draft, score = searched(stored, token_ids, 9, LIMITS)
            assert (found.token_ids or [], found.score) == (draft, pytest.approx(score))
            num_found += bool(draft)
    assert num_found > 100


def test_the_most_frequent_continuation_is_drafted() -> None:
    history = TokenHistory()
    for token_id in (7, 7, 8, 7):
        history.append([1, 2, token_id, 4, END])
    found = history.draft([9, 1, 2], 5, SuffixLimits(24, 2.0, 0.1))
    assert found.token_ids == [7, 4]
    assert found.score == pytest.approx(0.75 + 0.75)
    assert history.draft([9, 1, 2], 5, SuffixLimits(24, 2.0, 0.8)).token_ids == ()
    assert history.draft([9, 1, 2], 5, SuffixLimits(24, 0.5, 0.1)).token_ids == [7]
    assert history.draft([2, 1], 5, LIMITS).token_ids == ()


def ended(lookup: SuffixLookup, request: Request) -> None:
    lookup.propose(request, 1)
    request.status = RequestStatus.FINISHED
    lookup.begin_step()


def test_outputs_are_found_by_requests_with_the_same_salt_alone() -> None:
    lookup = SuffixLookup(LIMITS, 10)
    ended(lookup, make_request([50, 51, 52, 53], [1, 2, 3, 4, 5, 6], salt="a"))
    assert lookup.propose(make_request([9, 9, 2, 3], salt="a"), 9) == [4, 5]
    assert lookup.propose(make_request([9, 9, 2, 3], salt="b"), 9) == ()
    assert lookup.propose(make_request([9, 9, 2, 3]), 9) == ()
    assert lookup.propose(make_request([9, 9, 50, 51], salt="a"), 9) == (), "prompts are not stored"


def test_the_store_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_store, "MAX_TOKENS", 100)
    store = OutputStore(1000)
    for number in range(50):
        store.add(str(number), [1] * 29)
    assert store.index(10_000) == 50 * 30
    assert len(store) == 3
    assert [number for number in range(50) if store.history(str(number))] == [47, 48, 49]
    for number in range(suffix_store.MAX_WAITING + 10):
        store.add(f"more {number}", [1])
    assert store.index(10_000) == 2 * suffix_store.MAX_WAITING
    assert store.history(f"more {suffix_store.MAX_WAITING - 1}")
    assert not store.history(f"more {suffix_store.MAX_WAITING}"), "outputs that are too many are not stored"
    nothing = OutputStore(0)
    nothing.add("", [1, 2, 3])
    assert nothing.index(10) == 0


def test_outputs_that_leave_are_forgotten_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_store, "MAX_TOKENS", 2000)
    counts: list[int] = []
    forget = suffix_history.TokenHistory.forget

    def counted(history: TokenHistory, count: int) -> int:
        counts[-1] += (num_forgotten := forget(history, count))
        return num_forgotten

    monkeypatch.setattr(suffix_history.TokenHistory, "forget", counted)
    rng = random.Random(4)
    store = OutputStore(1000)
    num_added = 0
    for _ in range(400):
        if rng.random() < 0.3:
            output = [rng.randrange(1000) for _ in range(rng.randint(1, 300))]
            store.add("ab"[rng.random() < 0.2], output)
            num_added += len(output) + 1
        counts.append(0)
        store.index(100)
        assert counts[-1] <= 100
    counts.append(0)
    while store.index(100):
        counts.append(0)
    for _ in range(100):
        store.index(100)
    assert num_added > 10_000
    found = [history for salt in "ab" if (history := store.history(salt))]
    assert sum(len(links._latest) for history in found for links in history._links) <= 2 * store.num_tokens
    assert sum(len(history._tokens) for history in found) <= 2 * store.num_tokens + 100


def test_tokens_that_are_indexed_of_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix_lookup, "MAX_OWN_TOKENS", 10)
    lookup = SuffixLookup(LIMITS, 10)
    first, second = make_request([1, 2, 3, 4, 1, 2, 3, 4, 1, 2]), make_request([5, 6, 7, 5, 6])
    assert lookup.propose(first, 3) == [3, 4, 1]
    assert lookup.propose(second, 3) == (), "one of its tokens is indexed"
    ended(lookup, first)
    assert lookup.propose(second, 3) == [7, 5]


def test_an_output_that_is_partly_indexed_is_not_replaced() -> None:
    store = OutputStore(1000)
    store.add("long", list(range(100)))
    for _ in range(suffix_store.MAX_WAITING - 1):
        store.add("short", [1, 2])
    assert store.index(50) == 50
    store.add("another", [1, 2])
    assert store.index(10_000) == 51 + 3 * (suffix_store.MAX_WAITING - 1)
    assert len(store) == suffix_store.MAX_WAITING
    assert store.num_tokens == 101 + 3 * (suffix_store.MAX_WAITING - 1)


def test_long_prompts_are_indexed_over_several_steps() -> None:
    lookup = SuffixLookup(LIMITS, 10)
    prompt = [*range(3 * TOKENS_PER_STEP), 3, 4]
    request = make_request(prompt)
    for _ in range(3):
        lookup.begin_step()
        found = lookup.propose(request, 2)
    assert found == [5, 6], "the suffix occurs at the start"
    another = make_request([5, 6, 7, 8, 5, 6])
    lookup.begin_step()
    lookup.propose(make_request(prompt), 2)
    assert lookup.propose(another, 2) == (), "the first one used the step's budget"
    lookup.begin_step()
    assert lookup.propose(another, 2) == [7, 8]


def test_outputs_stay_the_same(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    rng = random.Random(5)
    prompts = [rng.choices(range(3, 300), k=20) for _ in range(3)] * 3

    def requests() -> list[Request]:
        made = [make_request(prompt, salt="ab"[place % 2]) for place, prompt in enumerate(prompts)]
        for place, each in enumerate(made):
            each.request_id = RequestId(str(place))
            each.sampling = replace(each.sampling, temperature=0.5 * (place % 2), seed=place % 3)
        return made

    plain = {name: each.token_ids for name, each in run(engine_of(model, False), requests()).items()}
    engine = engine_of(model, True, speculative_config=SUFFIX)
    for _ in range(2):
        before = engine.stats().speculation.num_accepted_tokens
        assert {name: each.token_ids for name, each in run(engine, requests(), at_once=2).items()} == plain
    assert engine.stats().speculation.num_accepted_tokens - before > 150, "the same outputs were stored"
