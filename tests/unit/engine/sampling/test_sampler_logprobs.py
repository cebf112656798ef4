import numpy as np
import pytest
import torch

from baton.engine.outputs import PositionLogprobs
from baton.engine.sampling.sampler import Sampler
from tests.unit.engine.sampler_reference import make_request


def random_logits(num_rows: int, vocab_size: int) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(1)) * 4


def check(found: PositionLogprobs, logits: np.ndarray, token_id: int, num_top: int) -> None:
    """Compare logprobs with a log-softmax in float64."""
    logprobs = logits.astype(np.float64) - logits.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    assert found.chosen.token_id == token_id
    assert found.chosen.logprob == pytest.approx(logprobs[token_id], abs=1e-5)
    assert found.chosen.rank == 1 + (logits > logits[token_id]).sum()
    best = np.sort(logprobs)[::-1][:num_top]
    assert [entry.logprob for entry in found.top] == pytest.approx(best, abs=1e-5)
    for entry in found.top:
        assert entry.logprob == pytest.approx(logprobs[entry.token_id], abs=1e-5)
        assert entry.rank == 1 + (logits > logits[entry.token_id]).sum()
    assert len({entry.token_id for entry in found.top}) == len(found.top)


@pytest.mark.parametrize("vocab_size", [5, 333, 4096])
@pytest.mark.parametrize("ties", [False, True])
def test_prompt_logprobs_equal_a_log_softmax(vocab_size: int, ties: bool) -> None:
    logits = random_logits(9, vocab_size)
    logits = logits.round() if ties else logits
    targets = torch.randint(vocab_size, (9,), generator=torch.Generator().manual_seed(2)).tolist()
    for num_top in (0, 1, 5, 20):
        found = Sampler(vocab_size, frozenset()).prompt_logprobs(logits, targets, num_top)
        assert len(found) == 9
        for row, target in enumerate(targets):
            check(found[row], logits[row].numpy(), target, min(num_top, vocab_size))


def test_prompt_logprobs_accept_a_tensor_of_targets() -> None:
    sampler, logits = Sampler(30, frozenset()), random_logits(3, 30)
    assert sampler.prompt_logprobs(logits, torch.tensor([4, 5, 6]), 2) == sampler.prompt_logprobs(logits, [4, 5, 6], 2)


def test_sampled_logprobs_are_of_the_unmodified_distribution() -> None:
    logits = random_logits(5, 600)
    options: list[dict[str, object]] = [
        {"temperature": 0.3, "logprobs": 4},
        {"top_k": 2, "logprobs": 20},
        {"logit_bias": {17: 100.0}, "logprobs": 1},
        {"repetition_penalty": 5.0, "top_p": 0.1, "logprobs": 3},
        {"temperature": 0.0, "min_tokens": 3, "logprobs": 2},
    ]
    requests = [make_request([1, 2], [3], seed=i, **option) for i, option in enumerate(options)]
    found = Sampler(600, frozenset([2])).sample(logits, requests)
    for row, (token, option) in enumerate(zip(found, options, strict=True)):
        assert token.logprobs is not None
        num_top = option["logprobs"]
        assert isinstance(num_top, int)
        check(token.logprobs, logits[row].numpy(), token.token_id, num_top)
    assert found[2].token_id == 17


def test_the_most_probable_token_has_rank_one() -> None:
    logits = random_logits(1, 100)
    [token] = Sampler(100, frozenset()).sample(logits, [make_request(temperature=0, logprobs=1)])
    assert token.logprobs is not None
    assert token.logprobs.chosen.rank == 1
    assert token.logprobs.top == (token.logprobs.chosen,)
