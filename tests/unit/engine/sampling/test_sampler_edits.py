import pytest
import torch

from baton.engine.sampling.logits import edit_logits
from tests.unit.engine.sampler_reference import edited, make_request

EOS = frozenset([3])
LOGITS = torch.tensor([[1.0, -2.0, 0.0, 4.0, 0.5, -0.25]])


def edit(prompt: list[int], output: list[int], **options: object) -> list[float]:
    return list(edit_logits(LOGITS, [make_request(prompt, output, **options)], EOS)[0].tolist())


def test_without_options_the_logits_are_passed_through() -> None:
    assert edit_logits(LOGITS, [make_request()], EOS) is LOGITS
    assert edit_logits(LOGITS, [make_request([1], [], presence_penalty=1.0)], EOS) is LOGITS
    assert edit_logits(LOGITS, [make_request([1], [2], min_tokens=1)], EOS) is LOGITS


def test_bias_is_added() -> None:
    assert edit([0], [], logit_bias={1: 2.5, 5: -100.0}) == [1.0, 0.5, 0.0, 4.0, 0.5, -100.25]


def test_repetition_penalty_covers_prompt_and_output_once() -> None:
    assert edit([0, 0, 1], [4, 4], repetition_penalty=2.0) == [0.5, -4.0, 0.0, 4.0, 0.25, -0.25]
    assert edit([0, 1], [], repetition_penalty=0.5) == [2.0, -1.0, 0.0, 4.0, 0.5, -0.25]


def test_presence_and_frequency_penalties_cover_the_output_only() -> None:
    assert edit([0, 1], [2, 2, 4], presence_penalty=0.5) == [1.0, -2.0, -0.5, 4.0, 0.0, -0.25]
    assert edit([0, 1], [2, 2, 4], frequency_penalty=0.5) == [1.0, -2.0, -1.0, 4.0, 0.0, -0.25]
    assert edit([0], [2, 2], frequency_penalty=-1.0, presence_penalty=0.25)[2] == 1.75


def test_repetition_penalty_comes_after_bias_and_before_the_others() -> None:
    found = edit([1], [1], logit_bias={1: 3.0}, repetition_penalty=2.0, presence_penalty=0.25)
    assert found[1] == (-2.0 + 3.0) / 2 - 0.25


@pytest.mark.parametrize(
    ("options", "forbidden"),
    [
        ({"min_tokens": 2}, {3}),
        ({"min_tokens": 2, "stop_token_ids": (0, 5)}, {0, 3, 5}),
        ({"min_tokens": 2, "stop_token_ids": (0, 0), "ignore_eos": True}, {0}),
        ({"min_tokens": 2, "logit_bias": {3: 100.0}}, {3}),
        ({"min_tokens": 1, "stop_token_ids": (0,)}, set()),
    ],
)
def test_stops_are_forbidden_until_min_tokens(options: dict[str, object], forbidden: set[int]) -> None:
    found = edit([0, 1, 2], [4], **options)
    assert {token for token, logit in enumerate(found) if logit == -float("inf")} == forbidden


def test_a_mixed_batch_equals_row_by_row() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 50, generator=generator) * 3
    tokens = torch.randint(50, (8, 30), generator=generator).tolist()
    requests = [
        make_request(tokens[0][:20], tokens[0][20:]),
        make_request(tokens[1][:5], tokens[1][5:], repetition_penalty=1.3),
        make_request(tokens[2][:5], tokens[2][5:], presence_penalty=0.7, frequency_penalty=0.2),
        make_request(tokens[3], [], min_tokens=5, stop_token_ids=(7,)),
        make_request(tokens[4][:1], tokens[4][1:], frequency_penalty=-0.4, repetition_penalty=0.9),
        make_request(tokens[5], [], logit_bias={1: 1.0, 49: -3.0}, repetition_penalty=1.1),
        make_request(tokens[6][:29], tokens[6][29:], presence_penalty=2.0),
        make_request(tokens[7], []),
    ]
    before = logits.clone()
    found = edit_logits(logits, requests, EOS)
    for row, request in enumerate(requests):
        expected = torch.from_numpy(edited(logits[row].numpy(), request, EOS))
        torch.testing.assert_close(found[row], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(logits, before)
    assert torch.equal(found[[0, 7]], logits[[0, 7]])
