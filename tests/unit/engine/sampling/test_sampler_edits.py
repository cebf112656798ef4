import weakref
from collections.abc import ItemsView, ValuesView

import pytest
import torch

from baton.engine.sampling.logits import LogitsEditor
from tests.unit.engine.sampler_reference import edited, make_request

EOS = frozenset([3])
LOGITS = torch.tensor([[1.0, -2.0, 0.0, 4.0, 0.5, -0.25]])


def edit(prompt: list[int], output: list[int], **options: object) -> list[float]:
    return list(LogitsEditor(EOS).edit(LOGITS, [make_request(prompt, output, **options)])[0].tolist())


def test_without_options_the_logits_are_passed_through() -> None:
    for request in (
        make_request(),
        make_request([1], [], presence_penalty=1.0),
        make_request([1], [2], min_tokens=1),
        make_request([1], [], min_tokens=1, ignore_eos=True),
    ):
        assert LogitsEditor(EOS).edit(LOGITS, [request]) is LOGITS


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
        ({"min_tokens": 2, "stop_token_ids": frozenset([0, 5])}, {0, 3, 5}),
        ({"min_tokens": 2, "stop_token_ids": frozenset([0]), "ignore_eos": True}, {0}),
        ({"min_tokens": 2, "logit_bias": {3: 100.0}}, {3}),
        ({"min_tokens": 1, "stop_token_ids": frozenset([0])}, set()),
    ],
)
def test_stop_tokens_are_forbidden_until_min_tokens(options: dict[str, object], forbidden: set[int]) -> None:
    found = edit([0, 1, 2], [4], **options)
    assert {token for token, logit in enumerate(found) if logit == -float("inf")} == forbidden


def test_a_mixed_batch_equals_separate_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 50, generator=generator) * 3
    tokens = torch.randint(50, (8, 30), generator=generator).tolist()
    requests = [
        make_request(tokens[0][:20], tokens[0][20:]),
        make_request(tokens[1][:5], tokens[1][5:], repetition_penalty=1.3),
        make_request(tokens[2][:5], tokens[2][5:], presence_penalty=0.7, frequency_penalty=0.2),
        make_request(tokens[3], [], min_tokens=5, stop_token_ids=frozenset([7])),
        make_request(tokens[4][:1], tokens[4][1:], frequency_penalty=-0.4, repetition_penalty=0.9),
        make_request(tokens[5], [], logit_bias={1: 1.0, 49: -3.0}, repetition_penalty=1.1),
        make_request(tokens[6][:29], tokens[6][29:], presence_penalty=2.0),
        make_request(tokens[7], []),
    ]
    before = logits.clone()
    found = LogitsEditor(EOS).edit(logits, requests)
    for row, request in enumerate(requests):
        expected = torch.from_numpy(edited(logits[row].numpy(), request, EOS))
        torch.testing.assert_close(found[row], expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(logits, before)
    assert torch.equal(found[[0, 7]], logits[[0, 7]])


class CountedTokens(dict[int, float]):
    """A bias that counts how often its entries are read."""

    num_reads = 0

    def values(self) -> ValuesView[float]:
        self.num_reads += 1
        return super().values()

    def items(self) -> ItemsView[int, float]:
        self.num_reads += 1
        return super().items()


def test_bias_and_stop_tokens_are_read_in_the_first_step_only() -> None:
    bias = CountedTokens({1: 2.5, 5: -1.0})
    request = make_request([0], [], logit_bias=bias, min_tokens=3, stop_token_ids=frozenset([0]))
    other = make_request([0], [], min_tokens=2, logit_bias={4: 1.0})
    editor, logits = LogitsEditor(EOS), LOGITS.repeat(2, 1)
    first = editor.edit(logits, [request, other])
    request.token_ids.append(2)
    other.token_ids.append(2)
    assert torch.equal(editor.edit(logits, [other, request]), first.flip(0))
    assert bias.num_reads == 1
    other.token_ids.append(2)  # stop tokens are allowed from here on
    assert editor.edit(logits, [other, request])[0].tolist() == [1.0, -2.0, 0.0, 4.0, 1.5, -0.25]


def test_a_freed_request_leaves_nothing_behind() -> None:
    editor, request = LogitsEditor(EOS), make_request([0], [], logit_bias={1: 2.5})
    editor.edit(LOGITS, [request])
    tensors = weakref.ref(editor._edits[request].biases)
    del request
    assert tensors() is None
