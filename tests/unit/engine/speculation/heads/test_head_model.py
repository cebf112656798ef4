"""Draft heads compute what their papers say, from the hidden states that transformers computes."""

import random
from pathlib import Path

import pytest

from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.draft_heads import random_head, repeating_head
from tests.unit.engine.speculation.heads.head_reference import combined, eagle, eagle3, hidden_states
from tests.unit.engine.speculation.heads.head_rig import advance, drafts_of, quiet_engine

GREEDY = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3") / "model")


def request_of(name: str, length: int, seed: int = 0) -> Request:
    prompt = random.Random(seed).choices(range(3, VOCAB_SIZE), k=length)
    return Request(RequestId(name), prompt, length, GREEDY)


@pytest.mark.parametrize("num_drafted", [None, 40])
def test_eagle3(model: Path, tmp_path: Path, num_drafted: int | None) -> None:
    head = random_head(model, tmp_path / "head", "eagle3", num_drafted=num_drafted)
    engine = quiet_engine(model, "eagle3", head)
    request = request_of("a", 50)
    engine.add(request)
    reference = eagle3(model, head)
    for length in (51, 53, 70):  # the first time the prompt is prepared, in chunks
        advance(engine, request, length)
        states = combined(head, hidden_states(model, request.token_ids)[:3])
        assert drafts_of(engine, request, 4) == reference.draft(request.token_ids, states[:-1], 4)


def test_eagle(model: Path, tmp_path: Path) -> None:
    head = random_head(model, tmp_path / "head", "eagle")
    engine = quiet_engine(model, "eagle", head)
    request = request_of("a", 9)
    engine.add(request)
    reference = eagle(model, head)
    for length in (10, 11, 40):
        advance(engine, request, length)
        states = hidden_states(model, request.token_ids)[-1]
        assert drafts_of(engine, request, 3) == reference.draft(request.token_ids, states[:-1], 3)


def test_a_prefix_hit_shortens_the_context_of_the_head(model: Path, tmp_path: Path) -> None:
    head = random_head(model, tmp_path / "head", "eagle3")
    engine = quiet_engine(model, "eagle3", head)
    first, second = request_of("a", 30), request_of("b", 30)
    for request in (first, second):
        engine.add(request)
        advance(engine, request, 34)
        given = request.num_without_states
        assert (given > 0) == (request is second)
        states = combined(head, hidden_states(model, request.token_ids)[:3])[given:-1]
        assert drafts_of(engine, request, 4) == eagle3(model, head).draft(request.token_ids[given:], states, 4)


@pytest.mark.parametrize("has_twin", [False, True])
def test_a_rest_shortens_the_context_of_the_head(model: Path, tmp_path: Path, has_twin: bool) -> None:
    head = random_head(model, tmp_path / "head", "eagle3")
    engine = quiet_engine(model, "eagle3", head)
    request = request_of("a", 20)
    engine.add(request)
    advance(engine, request, 25)
    if has_twin:
        drafts_of(engine, request, 4)
    assert engine.speculator is not None
    assert engine.speculator._rest is not None
    engine.speculator._rest._num_left = 5
    advance(engine, request, 34)
    assert request.num_without_states == 29
    states = combined(head, hidden_states(model, request.token_ids)[:3])[29:-1]
    assert drafts_of(engine, request, 4) == eagle3(model, head).draft(request.token_ids[29:], states, 4)


def test_hidden_states_are_those_of_the_last_admission(model: Path, tmp_path: Path) -> None:
    """The head that repeats the token to which the hidden state led finds it after a preemption too."""
    engine = quiet_engine(model, "eagle", repeating_head(model, tmp_path / "head"), enable_prefix_caching=False)
    request = request_of("a", 20)
    engine.add(request)
    advance(engine, request, 25)
    assert drafts_of(engine, request, 3) == [request.token_ids[-1]] * 3
    engine.scheduler._preempt(request)
    advance(engine, request, 28)
    assert request.num_preemptions == 1
    assert drafts_of(engine, request, 3) == [request.token_ids[-1]] * 3
