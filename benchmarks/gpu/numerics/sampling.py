"""Tokens sampled on the device compared with those sampled from the same logits on a CPU."""

import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from baton.engine.outputs import SampledToken
from baton.engine.request import Request
from baton.engine.sampling.params import SamplingParams
from baton.engine.sampling.sampler import Sampler
from benchmarks.gpu.engine_session import request
from benchmarks.gpu.stage import Record, Setting

VOCAB_SIZE = {False: 151936, True: 500}
NUM_REQUESTS = 48
EOS = 2
TOLERANCE = 1e-4  # of a logprob, whose sums differ in their order
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "whole": {"temperature": 1.3},
    "top-k": {"temperature": 0.8, "top_k": 40},
    "top-p": {"temperature": 1.1, "top_p": 0.9},
    "min-p": {"temperature": 1.0, "min_p": 0.02},
    "top-k and top-p": {"temperature": 0.7, "top_k": 100, "top_p": 0.8, "min_p": 0.01},
    "penalties": {"temperature": 1.0, "presence_penalty": 0.7, "frequency_penalty": 0.3, "repetition_penalty": 1.2},
    "bias": {"temperature": 0.0, "logit_bias": {7: 20.0, 11: -100.0}, "min_tokens": 100, "max_tokens": 200},
}


def requests_of(options: dict[str, Any], vocab_size: int) -> Iterator[Request]:
    """Yield requests with outputs of various lengths."""
    rng = random.Random(0)
    for index in range(NUM_REQUESTS):
        sampling = SamplingParams(seed=rng.getrandbits(64), logprobs=5, **options)
        made = request(str(index), [rng.randrange(vocab_size) for _ in range(rng.randint(1, 50))], sampling)
        made.token_ids += [rng.randrange(3, vocab_size) for _ in range(rng.randint(0, 50))]
        yield made


def check_sampling(record: Record, setting: Setting, case: str, *, is_mixed: bool = False) -> None:
    """Compare tokens and logprobs of a batch of requests with these options, or with all of them in turn."""
    vocab_size = VOCAB_SIZE[setting.is_quick]

    def requests() -> list[Request]:
        kinds = [list(requests_of(each, vocab_size)) for name, each in OPTIONS.items() if is_mixed or name == case]
        return [kinds[index % len(kinds)][index] for index in range(NUM_REQUESTS)]

    logits = torch.randn(NUM_REQUESTS, vocab_size, generator=torch.Generator().manual_seed(1)) * 4
    sampler = Sampler(vocab_size, frozenset({EOS}))
    expected, ours = sampler.sample(logits, requests()), sampler.sample(logits.to(setting.device), requests())
    pairs = list(zip(ours, expected, strict=True))
    num_same = sum(mine.token_id == theirs.token_id for mine, theirs in pairs)
    largest = max(_distance(mine, theirs) for mine, theirs in pairs)
    is_right = num_same == len(pairs) and largest < TOLERANCE
    record.find(
        case, is_right, f"{num_same} of {len(pairs)} tokens are the same, logprobs differ by up to {largest:.2g}"
    )


def _distance(ours: SampledToken, expected: SampledToken) -> float:
    """Return the largest difference of two tokens' logprobs; infinite if other tokens have the top logprobs."""
    assert ours.logprobs is not None
    assert expected.logprobs is not None
    mine, theirs = ((each.chosen, *each.top) for each in (ours.logprobs, expected.logprobs))
    pairs = list(zip(mine, theirs, strict=True))
    if any(one.token_id != other.token_id for one, other in pairs):
        return float("inf")
    return max(abs(one.logprob - other.logprob) for one, other in pairs)


@torch.inference_mode()
def run(setting: Setting, record: Record) -> None:
    """Run the stage."""
    for case in OPTIONS:
        record.attempt(case, partial(check_sampling, record, setting, case))
    record.attempt("mixed", partial(check_sampling, record, setting, "mixed", is_mixed=True))
