"""The engine's thread: calls run between steps, failures are reported."""

import threading
from pathlib import Path

import pytest
import torch

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.errors import EngineEnded, InvalidRequest
from baton.engine.loop import EngineLoop
from baton.engine.outputs import StepOutput
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from tests.checkpoints import make_checkpoint


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("loop") / "model")


def make_engine(model: Path, num_threads: int = 1) -> Engine:
    return Engine(EngineConfig(model=str(model), kv_cache_memory_bytes=1 << 20, num_threads=num_threads))


def make_request(name: str, max_tokens: int) -> Request:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return Request(RequestId(name), [5, 6, 7], 3, sampling)


class Listener:
    """Collects the outputs and failures of a loop."""

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.ended = threading.Event()
        self.errors: list[BaseException] = []

    def on_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            if output.sampled is not None:
                self.tokens.setdefault(output.request_id, []).append(output.sampled.token_id)
            if output.finish_reason is FinishReason.LENGTH:
                self.ended.set()

    def on_failure(self, error: BaseException) -> None:
        self.errors.append(error)
        self.ended.set()


def test_requests_run_and_calls_return(model: Path) -> None:
    listener = Listener()
    engine = make_engine(model)
    loop = EngineLoop(engine, listener.on_step, listener.on_failure)
    loop.start()
    loop.call(lambda engine: engine.add(make_request("a", 10))).result(timeout=60)
    assert listener.ended.wait(60)
    assert len(listener.tokens["a"]) == 10
    assert loop.call(Engine.stats).result(timeout=60).num_running == 0
    with pytest.raises(InvalidRequest):
        loop.call(lambda engine: engine.add(Request(RequestId("b"), [], 0, SamplingParams()))).result(timeout=60)
    assert loop.call(lambda engine: engine.abort(RequestId("none"))).result(timeout=60) is False
    loop.stop()
    engine.check_integrity()
    assert listener.errors == []


def test_the_engine_uses_num_threads_and_tokens_do_not_depend_on_it(model: Path) -> None:
    before = torch.get_num_threads()
    tokens = []
    try:
        for num_threads in (1, 2):
            listener = Listener()
            loop = EngineLoop(make_engine(model, num_threads), listener.on_step, listener.on_failure)
            loop.start()
            loop.call(lambda engine: engine.add(make_request("a", 20))).result(timeout=60)
            assert listener.ended.wait(60)
            assert loop.call(lambda _: torch.get_num_threads()).result(timeout=60) == num_threads
            loop.stop()
            tokens.append(listener.tokens["a"])
    finally:
        torch.set_num_threads(before)  # new threads would inherit the last value
    assert tokens[0] == tokens[1]


def test_a_blocked_request_costs_no_steps(model: Path) -> None:
    listener = Listener()
    engine = make_engine(model)
    loop = EngineLoop(engine, listener.on_step, listener.on_failure)
    loop.start()
    _, pinned = loop.call(lambda engine: (0, engine.blocks.cache.allocate(engine.blocks.num_usable))).result(timeout=60)
    loop.call(lambda engine: engine.add(make_request("a", 4))).result(timeout=60)
    loop.call(Engine.stats).result(timeout=60)
    for _ in range(20):  # each wakes the loop for one try at most
        loop.call(Engine.stats).result(timeout=60)
    assert "a" not in listener.tokens
    loop.call(lambda engine: engine.blocks.cache.release(pinned)).result(timeout=60)
    assert listener.ended.wait(60)
    assert len(listener.tokens["a"]) == 4
    loop.stop()


def test_a_failing_step_ends_the_loop(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener()
    engine = make_engine(model)

    def fail(*_: object) -> None:
        raise RuntimeError("broken model")

    monkeypatch.setattr(engine.runner, "launch", fail)
    loop = EngineLoop(engine, listener.on_step, listener.on_failure)
    loop.start()
    loop.call(lambda engine: engine.add(make_request("a", 4))).result(timeout=60)
    assert listener.ended.wait(60)
    assert [str(error) for error in listener.errors] == ["broken model"]
    with pytest.raises(EngineEnded):
        loop.call(Engine.stats).result(timeout=60)


def test_callers_fail_even_if_the_engine_cannot_be_closed(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, listener = make_engine(model), Listener()

    def fail(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(engine, "close", fail)
    monkeypatch.setattr(engine.runner, "launch", fail)
    loop = EngineLoop(engine, listener.on_step, listener.on_failure)
    loop.start()
    loop.call(lambda engine: engine.add(make_request("a", 10)))
    assert listener.ended.wait(60)
    assert [str(error) for error in listener.errors] == ["no memory"]
    with pytest.raises(EngineEnded):
        loop.call(Engine.stats).result(timeout=60)


def test_calls_after_the_end_of_the_loop_fail(model: Path) -> None:
    listener = Listener()
    loop = EngineLoop(make_engine(model), listener.on_step, listener.on_failure)
    entered, leave = threading.Event(), threading.Event()

    def hold(_: Engine) -> None:
        entered.set()
        leave.wait(60)

    loop.start()
    loop.call(hold)
    assert entered.wait(60)
    stopping = threading.Thread(target=loop.stop)
    stopping.start()
    late = loop.call(Engine.stats)
    leave.set()
    stopping.join(60)
    outcome = late.exception(timeout=60)  # the call arrived before or after the loop's last check
    assert outcome is None or isinstance(outcome, EngineEnded)
    with pytest.raises(EngineEnded):
        loop.call(Engine.stats).result(timeout=60)
