"""Tokens of simulated models."""

import random

from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import PrefixDigest, continuation, token_of

SPEC = WorkerSpec(first_token_id=1000, num_token_ids=50)


def test_the_digest_does_not_depend_on_how_tokens_are_split() -> None:
    draw = random.Random(1)
    tokens = [draw.randrange(1 << 31) for _ in range(200)]
    whole = PrefixDigest().extended(tokens)
    for _ in range(20):
        digest, end, value = PrefixDigest(), 0, 0
        while end < len(tokens):
            end = min(len(tokens), end + draw.choice([0, 1, 1, 7]))
            value = digest.extended(tokens[:end])
        assert value == whole


def test_a_continuation_can_start_at_any_token() -> None:
    prompt = [5, 6, 7]
    tokens = continuation(prompt, 30, SPEC)
    assert all(1000 <= token < 1050 for token in tokens)
    assert len(set(tokens)) > 10
    for done in (0, 1, 13, 30):
        assert tokens[done:] == continuation(prompt + tokens[:done], 30 - done, SPEC)


def test_every_token_changes_the_continuation() -> None:
    wide = WorkerSpec(num_token_ids=1 << 20)
    prompt = list(range(40))
    first = token_of(PrefixDigest().extended(prompt), wide)
    for index in range(len(prompt)):
        changed = [*prompt[:index], 99, *prompt[index + 1 :]]
        assert token_of(PrefixDigest().extended(changed), wide) != first
