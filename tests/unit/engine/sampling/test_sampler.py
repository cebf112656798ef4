import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.engine.outputs import SampledToken
from baton.engine.request import Request
from baton.engine.sampling.sampler import Sampler
from tests.marks import slow_case
from tests.unit.engine.sampler_reference import choose, make_request, probabilities

EOS = frozenset([2, 5])
KNOWN_TOKENS = [855, 2173, 1527, 1188]
VOCAB_SIZES = (7, 64, 100, 640, 1024, 4100)


def random_logits(num_rows: int, vocab_size: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def sample_ids(logits: torch.Tensor, requests: list[Request], eos: frozenset[int] = EOS) -> list[int]:
    return [token.token_id for token in Sampler(logits.shape[1], eos).sample(logits, requests)]


@st.composite
def any_request(draw: st.DrawFn, vocab_size: int) -> Request:
    token = st.integers(0, vocab_size - 1)
    output = draw(st.lists(token, max_size=12))
    return make_request(
        draw(st.lists(token, min_size=1, max_size=12)),
        output,
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.0, 2.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 5, 20, 63, 64, 65, 300, vocab_size, 10**20])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.01, 0.5, 0.9, 0.999])),
        min_p=draw(st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.2, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 1.5, -1.0])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.5, -0.25])),
        logit_bias=draw(st.dictionaries(token, st.sampled_from([-100.0, -1.5, 2.25, 100.0]), max_size=4)),
        seed=draw(st.integers(0, 2**64 - 1)),
        stop_token_ids=frozenset(draw(st.lists(token, max_size=2))),
        ignore_eos=draw(st.booleans()),
        min_tokens=draw(st.sampled_from([0, 0, len(output), len(output) + 1])),
        logprobs=draw(st.sampled_from([None, None, 0, 3])),
    )


@settings(max_examples=25)
@given(data=st.data(), vocab_size=st.sampled_from(VOCAB_SIZES), seed=st.integers(0, 2**32), ties=st.booleans())
def test_the_sampler_equals_the_reference_for_any_options(
    data: st.DataObject, vocab_size: int, seed: int, ties: bool
) -> None:
    requests = data.draw(st.lists(any_request(vocab_size), min_size=1, max_size=6))
    logits = random_logits(len(requests), vocab_size, seed)
    logits = logits.bfloat16().float() if ties else logits
    expected = [choose(row, request, EOS) for row, request in zip(logits.numpy(), requests, strict=True)]
    assert sample_ids(logits, requests) == expected


@settings(max_examples=20)
@given(data=st.data(), vocab_size=st.sampled_from(VOCAB_SIZES))
def test_a_request_draws_the_same_alone_and_in_any_batch(data: st.DataObject, vocab_size: int) -> None:
    requests = data.draw(st.lists(any_request(vocab_size), min_size=2, max_size=8))
    # Rounded as a bfloat16 model's logits are, so that ties come up.
    logits = random_logits(len(requests), vocab_size).bfloat16().float()
    sampler = Sampler(vocab_size, EOS)
    together = sampler.sample(logits, requests)
    alone = [sampler.sample(logits[i : i + 1], [request])[0] for i, request in enumerate(requests)]
    assert together == alone
    order = data.draw(st.permutations(range(len(requests))))
    permuted = sampler.sample(logits[list(order)], [requests[i] for i in order])
    assert permuted == [together[i] for i in order]


def test_many_rows_draw_the_same_as_few() -> None:
    """Enough rows that they are drawn in chunks, with options in every mixture."""
    vocab_size, num_rows = 40_000, 130
    rng = random.Random(0)
    logits = random_logits(num_rows, vocab_size)
    options: list[dict[str, object]] = [
        {},
        {"top_p": 0.9},
        {"top_k": 20, "temperature": 0.6},
        {"temperature": 0.0},
        {"min_p": 0.1},
    ]
    requests = [make_request(seed=i, **rng.choice(options)) for i in range(num_rows)]
    found = sample_ids(logits, requests)
    for start in (0, 41, 99):
        assert sample_ids(logits[start : start + 7], requests[start : start + 7]) == found[start : start + 7]


def test_tokens_depend_only_on_the_length_of_the_history() -> None:
    logits = random_logits(1, 1000)
    fresh = make_request([1, 2, 3, 4], [], seed=9)
    moved = make_request([7], [8, 9, 10], seed=9)
    assert sample_ids(logits, [fresh]) == sample_ids(logits, [moved])


def test_draws_depend_on_seed_and_position() -> None:
    logits = torch.zeros(1, 5000)
    by_seed = {sample_ids(logits, [make_request(seed=seed)])[0] for seed in range(50)}
    by_position = {sample_ids(logits, [make_request([0] * (1 + n))])[0] for n in range(50)}
    assert len(by_seed) > 45
    assert len(by_position) > 45


def test_tokens_have_known_values() -> None:
    """Tokens that must never change for given logits: flat, by blocks, and truncated with few and many candidates."""
    logits = (torch.arange(3000) * 7919 % 3000).float()[None].expand(4, -1) / 300
    options: list[dict[str, object]] = [{}, {"top_k": 40}, {"top_p": 0.97}, {"temperature": 0.8, "min_p": 0.05}]
    requests = [make_request([1] * 10, seed=1234 + i, **option) for i, option in enumerate(options)]
    assert sample_ids(logits, requests) == KNOWN_TOKENS


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 12},
        {"top_p": 0.6},
        {"top_p": 0.98},
        {"min_p": 0.2},
        {"top_k": 150, "top_p": 0.95, "min_p": 0.001, "temperature": 1.5},
        {"top_k": 400},
        {"logit_bias": {3: 2.0, 77: 4.0}, "top_k": 30},
    ],
    ids=str,
)
@pytest.mark.parametrize("num_draws", [4_000, slow_case(20_000)])
def test_draws_follow_the_distribution(options: dict[str, object], num_draws: int) -> None:
    """Chi-square test over `num_draws` positions; the bound is exceeded by chance once in a million times."""
    vocab_size = 700
    logits = random_logits(1, vocab_size, spread=1.5)
    counts = np.zeros(vocab_size)
    for start in range(0, num_draws, 2000):
        requests = [make_request([0] * (start // 100 + i % 20 + 1), seed=start + i, **options) for i in range(2000)]
        tokens = sample_ids(logits.expand(2000, -1), requests, frozenset())
        counts += np.bincount(tokens, minlength=vocab_size)
    expected = probabilities(logits[0].numpy(), make_request(**options)) * num_draws
    assert counts[expected == 0].sum() == 0
    # Rare tokens are counted together, so that every class is large enough.
    rare = expected < 8
    classes = np.append(expected[~rare], expected[rare].sum())
    found = np.append(counts[~rare], counts[rare].sum())
    classes, found = classes[classes > 0], found[classes > 0]
    chi_square = ((found - classes) ** 2 / classes).sum()
    freedom = len(classes) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * freedom) + 15


def test_one_seed_over_many_positions_follows_the_distribution() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).log_softmax(-1)
    requests = [make_request([0] * (position + 1), seed=5) for position in range(2000)]
    counts = np.bincount(sample_ids(logits.expand(2000, -1), requests, frozenset()), minlength=4)
    expected = logits[0].exp().numpy() * 2000
    assert ((counts - expected) ** 2 / expected).sum() < 25


def test_greedy_breaks_ties_by_the_lowest_token_id() -> None:
    logits = torch.zeros(4, 128)
    logits[0, [7, 70]] = 3
    logits[1, [64, 65]] = 1
    logits[2] = -torch.inf
    logits[3, 127] = 2
    assert sample_ids(logits, [make_request(temperature=0)] * 4) == [7, 64, 0, 127]
    assert sample_ids(logits[:, :127], [make_request(temperature=0)] * 4)[:3] == [7, 64, 0]
    assert sample_ids(logits, [make_request(temperature=0.9e-5)] * 4) == [7, 64, 0, 127]


def test_greedy_equals_argmax() -> None:
    for vocab_size in (100, 4096):
        logits = random_logits(50, vocab_size).bfloat16().float()
        expected = logits.numpy().argmax(-1).tolist()
        assert sample_ids(logits, [make_request(temperature=0)] * 50) == expected


def test_a_row_without_allowed_tokens_does_not_affect_others() -> None:
    mixture: list[dict[str, object]] = [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.5}, {"top_k": 100, "top_p": 0.5}]
    for options in mixture:
        logits = random_logits(3, 200)
        alone = sample_ids(logits[2:], [make_request(**options)])
        logits[1] = -torch.inf
        found = sample_ids(logits, [make_request(**options)] * 3)
        assert 0 <= found[1] < 200
        assert found[2:] == alone


def test_the_sampler_survives_large_and_tiny_temperatures() -> None:
    logits = random_logits(1, 500)
    best = int(logits.argmax())
    mixture: list[dict[str, object]] = [{}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}]
    for options in mixture:
        assert sample_ids(logits, [make_request(temperature=2e-5, **options)]) == [best]
        assert 0 <= sample_ids(logits * 1e6, [make_request(temperature=100, **options)])[0] < 500


def test_logits_are_not_modified() -> None:
    logits = random_logits(3, 300)
    before = logits.clone()
    requests = [make_request([4], [5], repetition_penalty=1.3, logit_bias={1: 5.0}, min_p=0.3, top_p=0.5, logprobs=2)]
    sample_ids(logits, requests * 3)
    assert torch.equal(logits, before)


def test_an_empty_batch_samples_nothing() -> None:
    assert Sampler(10, EOS).sample(torch.empty(0, 10), []) == []


def test_mismatched_shapes_are_refused() -> None:
    sampler = Sampler(10, EOS)
    with pytest.raises(ValueError, match="2 requests x 10"):
        sampler.sample(torch.zeros(1, 10), [make_request()] * 2)
    with pytest.raises(ValueError, match="1 requests x 10"):
        sampler.sample(torch.zeros(1, 11), [make_request()])
    with pytest.raises(ValueError, match="3 tokens of 10"):
        sampler.prompt_logprobs(torch.zeros(2, 10), [1, 2, 3], 1)
    with pytest.raises(ValueError, match="must be below 4"):
        Sampler(4, EOS)


def test_only_requests_with_logprobs_get_them() -> None:
    requests = [make_request(), make_request(logprobs=0), make_request(logprobs=2), make_request(temperature=0)]
    found: list[SampledToken] = Sampler(50, EOS).sample(random_logits(4, 50), requests)
    assert found[0].logprobs is None
    assert found[3].logprobs is None
    assert found[1].logprobs is not None
    assert found[1].logprobs.top == ()
    assert found[2].logprobs is not None
    assert len(found[2].logprobs.top) == 2
    assert found[2].logprobs.chosen.token_id == found[2].token_id
