"""Outputs of a real engine are the same with a draft model as without, however good it is."""

import random
from pathlib import Path

import pytest

from baton.engine.request import Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.checkpoints import make_checkpoint
from tests.draft_checkpoints import with_first_layers, with_noise
from tests.marks import slow_except
from tests.unit.engine.speculation.draft_rig import acceptance, drafter_of, drafting_engine, run_and_free
from tests.unit.engine.speculation.speculation_rig import assert_equal, copies, engine_of, run
from tests.unit.engine.speculation.test_speculative_outputs import VOCAB, random_request

LONGEST = 112  # tokens
SCARCE = 390_000  # bytes of KV
QUALITIES = ("same", "similar", "shallow", "garbage")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3") / "model")


@pytest.fixture(scope="module")
def drafts(model: Path) -> dict[str, Path]:
    """Draft models by their quality."""
    return {
        "same": model,
        "similar": with_noise(model, model.parent / "similar", 0.05),
        "shallow": with_first_layers(model, model.parent / "shallow", 1),
        "garbage": make_checkpoint("qwen3", model.parent / "garbage", seed=7),
    }


def requests_of(seed: int, count: int) -> list[Request]:
    draw = random.Random(seed)
    shared = draw.choices(VOCAB, k=50)
    return [random_request(draw, str(number), shared) for number in range(count)]


@pytest.mark.parametrize("memory", slow_except([1 << 21, SCARCE], {SCARCE}), ids=["plenty", "scarce"])
@pytest.mark.parametrize("quality", slow_except(QUALITIES, {"similar"}))
def test_outputs_equal_those_without_drafts(model: Path, drafts: dict[str, Path], quality: str, memory: int) -> None:
    requests = requests_of(3, 20)
    expected = run(engine_of(model, False, max_model_len=LONGEST), copies(requests))
    engine = drafting_engine(model, drafts[quality], kv_cache_memory_bytes=memory, max_model_len=LONGEST)
    assert_equal(run_and_free(engine, requests), expected)
    counters = engine.stats().speculation
    assert counters.num_draft_tokens > 100
    assert counters.drafting_s > 0
    assert (engine.scheduler.num_preemptions > 0) == (memory == SCARCE)
    rate = acceptance(engine)
    assert {"same": rate > 0.98, "similar": 0.3 < rate < 1, "shallow": rate < 0.9, "garbage": rate < 0.2}[quality], rate


def test_the_same_model_is_always_right_at_any_temperature(model: Path) -> None:
    """Its noise is that of the request."""
    sampling = SamplingParams(temperature=1.2, seed=5, top_p=0.95, max_tokens=41, ignore_eos=True)
    engine = drafting_engine(model, model)
    request = Request(RequestId("a"), [5, 6, 7], 3, sampling)
    expected = run(engine_of(model, False), copies([request]))
    assert_equal(run_and_free(engine, [request]), expected)
    counters = engine.stats().speculation
    assert counters.num_accepted_tokens == counters.num_draft_tokens > 20
    assert counters.accepted_by_position[3] > 3


def test_a_shared_prefix_is_computed_once(model: Path) -> None:
    prompt = list(range(3, 60))
    sampling = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    engine = drafting_engine(model, model)
    blocks = drafter_of(engine)._model.blocks
    for name in ("first", "second"):
        run_and_free(engine, [Request(RequestId(name), list(prompt), len(prompt), sampling)])
    twin = drafter_of(engine).twins.of(Request(RequestId("third"), list(prompt), len(prompt), sampling))
    assert twin.num_missing < blocks.block_size
    other = Request(RequestId("fourth"), list(prompt), len(prompt), sampling, cache_salt="another tenant")
    assert drafter_of(engine).twins.of(other).num_missing == len(prompt) - 1
