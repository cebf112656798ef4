"""Engines whose windowed layers have blocks of their own give the tokens of whole blocks, and hold more requests."""

import random
from pathlib import Path

import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.outputs import SampledToken
from baton.engine.request import Request, RequestId, RequestStatus
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import Received
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_case

WINDOW = 24  # of the checkpoints; Llama 4's chunks are longer


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("gemma3", tmp_path_factory.mktemp("gemma3") / "model")


def make_engine(model: Path, kv_bytes: int, **options: object) -> Engine:
    usual = {"max_num_batched_tokens": 40, "max_num_seqs": 8, "num_threads": 1, "hybrid_kv_cache": True}
    return Engine(
        EngineConfig(model=str(model), dtype="float32", kv_cache_memory_bytes=kv_bytes, **(usual | options))  # type: ignore[arg-type]
    )


def make_request(name: str, prompt: list[int], num_tokens: int, seed: int | None = None, **options: bool) -> Request:
    temperature = 0.0 if seed is None else 1.0
    sampling = SamplingParams(temperature=temperature, max_tokens=num_tokens, ignore_eos=True, seed=seed or 0)
    return Request(RequestId(name), [*prompt], len(prompt), sampling, **options)


def random_tokens(rng: random.Random, count: int) -> list[int]:
    return rng.choices(range(3, VOCAB_SIZE), k=count)


def run(engine: Engine, requests: list[Request]) -> dict[str, list[int]]:
    """Run requests to their ends; return their tokens."""
    for request in requests:
        engine.add(request)
    outputs: dict[str, list[int]] = {request.request_id: [] for request in requests}
    while engine.has_work:
        for output in engine.run(engine.schedule()).outputs:
            outputs[output.request_id] += output.token_ids
        engine.check_integrity()
    return outputs


def workload(seed: int) -> list[list[Request]]:
    """Turns of requests with prompts up to several times longer than the windows, many with a common prefix."""
    rng = random.Random(seed)
    stem, turns = random_tokens(rng, 90), []
    for turn in range(3):
        prompts = [stem[: rng.randrange(90)] + random_tokens(rng, rng.randrange(1, 130)) for _ in range(6)]
        turns.append(
            [
                make_request(f"{turn}-{place}", prompt, rng.randrange(1, 40), seed=place if place % 2 else None)
                for place, prompt in enumerate(prompts)
            ]
        )
    return turns


@pytest.mark.parametrize(
    ("architecture", "kv_dtype"),
    [
        slow_case("gemma3", "auto"),
        ("gemma4", "auto"),
        ("llama4", "int8"),
        slow_case("mistral-window", "auto"),
        slow_case("gpt-oss", "auto"),
        slow_case("gpt-oss", "int8"),
        slow_case("olmo3", "auto"),
        slow_case("gemma2", "int8"),
        slow_case("gemma3", "int4"),
    ],
)
def test_tokens_are_those_of_whole_blocks(architecture: str, kv_dtype: str, tmp_path: Path) -> None:
    model = make_checkpoint(architecture, tmp_path / "model")
    kv_bytes = (5 << 16) if kv_dtype == "auto" else (6 << 14)
    engines = [
        make_engine(model, kv_bytes, kv_cache_dtype=kv_dtype, hybrid_kv_cache=hybrid) for hybrid in (True, False)
    ]
    for turn in range(3):
        outputs, expected = [run(engine, workload(1)[turn]) for engine in engines]
        assert outputs == expected
    hybrid, whole = engines
    assert hybrid.fingerprint != whole.fingerprint
    assert hybrid.scheduler.num_cached_tokens > 100
    assert hybrid.blocks.num_free == hybrid.blocks.num_usable


def test_tokens_survive_preemptions(gemma3: Path) -> None:
    whole, hybrid = make_engine(gemma3, 1 << 22, hybrid_kv_cache=False), make_engine(gemma3, 12 << 14)
    rng = random.Random(3)
    prompts = [random_tokens(rng, rng.randrange(20, 90)) for _ in range(8)]

    def requests() -> list[Request]:
        return [make_request(f"{place}", prompt, 70) for place, prompt in enumerate(prompts)]

    assert run(hybrid, requests()) == run(whole, requests())
    assert hybrid.scheduler.num_preemptions > 0


def allowed(engine: Engine, num_tokens: float) -> float:
    """Return how many sequences of a model with three windows to each whole layer fit into the pool by arithmetic."""
    pool_tokens = (len(engine.pool) - 1) * engine.config.block_size
    return pool_tokens / (num_tokens + 3 * WINDOW)


def test_received_sequences_fill_the_pool(gemma3: Path) -> None:
    """A decode worker holds at least 0.9 of the sequences that the windows allow."""
    engine = make_engine(gemma3, 1 << 21, block_size=4, max_num_seqs=32, max_num_batched_tokens=64)
    rng = random.Random(4)
    for place in range(40):
        prompt = random_tokens(rng, 380)
        engine.add(make_request(f"{place}", prompt, 20, receives_kv=True, receives_whole=True))
    for request in engine.schedule().receiving:
        engine.end_receive(request.request_id, Received(request.num_tokens, SampledToken(5)))
    num_running = len(engine.scheduler.running)
    assert num_running < 40
    assert num_running >= 0.9 * allowed(engine, 381)
    engine.check_integrity()


@pytest.mark.slow
def test_computed_sequences_fill_the_pool(gemma3: Path) -> None:
    engine = make_engine(gemma3, 31 << 17, block_size=4, max_num_seqs=60, max_num_batched_tokens=128)
    rng = random.Random(5)
    for place in range(60):
        engine.add(make_request(f"{place}", random_tokens(rng, 380), 110))
    best = 0.0
    while engine.has_work:
        engine.run(engine.schedule())
        running = [each for each in engine.scheduler.running if each.num_output_tokens]
        if running:
            mean = sum(each.num_tokens for each in running) / len(running)
            best = max(best, len(running) / allowed(engine, mean))
    engine.check_integrity()
    assert best >= 0.9


def test_a_failed_receive_is_computed_here(gemma3: Path) -> None:
    engine = make_engine(gemma3, 1 << 21)
    prompt = random_tokens(random.Random(6), 150)
    [expected] = run(make_engine(gemma3, 1 << 21, hybrid_kv_cache=False), [make_request("r", prompt, 20)]).values()
    run(engine, [make_request("warm", prompt[:70], 1)])
    request = make_request("r", prompt, 20, receives_kv=True, receives_whole=True)
    engine.add(request)
    assert engine.schedule().receiving == [request]
    assert request.num_computed_tokens == 64
    engine.end_receive(request.request_id, Received(64))
    engine.check_integrity()
    tokens = []
    while engine.has_work:
        tokens += [token for output in engine.run(engine.schedule()).outputs for token in output.token_ids]
        engine.check_integrity()
    assert request.status is RequestStatus.FINISHED
    assert tokens == expected
