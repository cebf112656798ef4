"""Drafts in tensor-parallel and expert-parallel groups: the ranks compute them like any tokens."""

import random
from pathlib import Path

from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.unit.engine.group_rig import Ranks
from tests.unit.engine.speculation.speculation_rig import (
    NGRAM,
    Outcome,
    assert_equal,
    copies,
    draft_always,
    engine_of,
    run,
)
from tests.unit.engine.tensor_rig import TensorRig


def make_requests(seed: int, count: int) -> list[Request]:
    draw = random.Random(seed)
    requests = []
    for number in range(count):
        prompt = draw.choices(range(3, VOCAB_SIZE), k=draw.choice((1, 3, 17, 40)))
        sampling = SamplingParams(temperature=number % 2, seed=number, max_tokens=24, ignore_eos=True, logprobs=0)
        requests.append(Request(RequestId(f"{seed}-{number}"), prompt, len(prompt), sampling))
    return requests


def tokens(expected: dict[str, Outcome]) -> dict[str, list[int]]:
    return {name: outcome.token_ids for name, outcome in expected.items()}


def test_tensor_parallel_ranks(tmp_path: Path) -> None:
    model = make_checkpoint("llama3", tmp_path / "model")
    expected = run(engine_of(model, False), make_requests(1, 6))
    requests = copies(make_requests(1, 6))
    rig = TensorRig(model, 2, speculative_config=NGRAM, block_size=4, max_num_batched_tokens=32, max_num_seqs=8)
    try:
        rig.call(lambda engine: draft_always(engine, tokens(expected)))
        assert_equal(rig.call(lambda engine: run(engine, requests)), expected)
        assert rig.engine.stats().speculation.num_accepted_tokens > 30
    finally:
        rig.close()


def test_expert_parallel_ranks(tmp_path: Path) -> None:
    """Each rank has drafts of its own."""
    model = make_checkpoint("mixtral", tmp_path / "model")
    names = ["rank-0", "rank-1"]
    expected = {name: tokens(run(engine_of(model, False), make_requests(place, 4))) for place, name in enumerate(names)}
    group = Ranks(
        model, names, speculative_config=NGRAM, dtype="float32", block_size=4, max_num_batched_tokens=32, max_num_seqs=8
    )
    try:
        for name in names:
            group[name].call(lambda engine, known=expected[name]: draft_always(engine, known)).result()
        for place, name in enumerate(names):
            group[name].add(*make_requests(place, 4))
        outputs = group.wait_for_all()
        for name in names:
            found = {each: [token.token_id for token in outputs[each]] for each in expected[name]}
            assert found == expected[name]
            assert group[name].engine.stats().speculation.num_accepted_tokens > 20
    finally:
        group.close()
