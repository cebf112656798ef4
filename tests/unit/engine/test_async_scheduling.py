"""Steps launched before the previous step's tokens are known: the tokens are the same, and none is lost.

On a CPU a step is computed when it is launched, but the scheduler gets its results just as late as on a GPU.
"""

import random
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.execution.in_flight_step import LaunchedStep
from baton.engine.loop import EngineLoop
from baton.engine.outputs import StepOutput
from baton.engine.request import FinishReason, Request, RequestId
from baton.engine.sampling.params import SamplingParams
from baton.engine.scheduling.schedule import ScheduledRequest
from baton.settings.values import parse_json
from tests.architectures import VOCAB_SIZE
from tests.checkpoints import make_checkpoint
from tests.marks import slow_except

TIMEOUT_S = 120
PLAIN = SamplingParams(temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint("qwen3", tmp_path_factory.mktemp("qwen3") / "model")


def engine_of(model: Path, async_scheduling: bool, **options: Any) -> Engine:
    config = EngineConfig(
        model=str(model), dtype="float32", num_threads=1, async_scheduling=async_scheduling, block_size=4,
        max_num_batched_tokens=64, **{"kv_cache_memory_bytes": 1 << 20, "max_num_seqs": 8} | options,
    )  # fmt: skip
    return Engine(config)


def random_request(draw: random.Random, name: str) -> Request:
    """A random request: most can be sampled ahead, others edit logits, report logprobs, or end at a stop token."""
    seed = draw.getrandbits(60)
    every = {step: frozenset(range(0, VOCAB_SIZE, step)) for step in (2, 3, 9)}
    ahead = (
        PLAIN,
        PLAIN,
        SamplingParams(temperature=1.0, seed=seed, ignore_eos=True),
        SamplingParams(temperature=1.0, seed=seed, stop_token_ids=every[3]),  # a third of all tokens end it
        SamplingParams(temperature=0.8, seed=seed, stop_token_ids=every[9]),
    )
    step_by_step = (
        SamplingParams(temperature=1.0, seed=seed, top_p=0.8, ignore_eos=True),
        SamplingParams(temperature=0, repetition_penalty=1.3, ignore_eos=True),
        SamplingParams(temperature=0, logprobs=2, ignore_eos=True),
        SamplingParams(temperature=0, min_tokens=5, stop_token_ids=every[2]),
    )
    is_ahead = draw.random() < 0.8
    sampling = draw.choice(ahead if is_ahead else step_by_step)
    sampling = replace(sampling, max_tokens=draw.randrange(1, 60) if is_ahead else draw.randrange(5, 8))
    prompt = draw.choices(range(3, VOCAB_SIZE), k=draw.randrange(1, 40))
    return Request(RequestId(name), prompt, len(prompt), sampling)


class Clients:
    """Clients of an engine loop: send a request after every 23 tokens and collect the outputs."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self.engine = engine
        self.tokens: dict[str, list[int]] = {request.request_id: [] for request in requests}
        self.reasons: dict[str, FinishReason] = {}
        self._left = list(requests)
        self._aborted: set[str] = set()
        self._num_tokens = 0
        self._ended = threading.Event()
        self.failures: list[BaseException] = []
        self.num_launched_ahead = 0
        launch = engine.runner.launch

        def counting(scheduled: Sequence[ScheduledRequest], behind: LaunchedStep | None = None) -> LaunchedStep:
            self.num_launched_ahead += behind is not None
            return launch(scheduled, behind)

        engine.runner.launch = counting  # type: ignore[method-assign]
        self.loop = EngineLoop(engine, self._on_step, self._on_failure)

    def run(self, at_once: int, aborted: Sequence[str] = ()) -> None:
        """at_once: number of requests sent at the start; aborted: ids of requests to abort after 4 tokens."""
        self._aborted = set(aborted)
        first, self._left = self._left[:at_once], self._left[at_once:]  # the loop's thread has the others
        self.loop.start()
        for request in first:
            self._send(request)
        assert self._ended.wait(TIMEOUT_S)
        self.loop.stop()
        assert self.failures == []
        self.engine.check_integrity()
        assert not self.engine.has_work

    def _send(self, request: Request) -> None:
        self.loop.call(lambda engine: engine.add(request))

    def _on_step(self, step: StepOutput) -> None:
        for output in step.outputs:
            name = output.request_id
            is_ending = self.reasons.get(name) is FinishReason.ABORT  # the abort waits for steps in flight
            assert is_ending or name not in self.reasons, "an output of a request that has ended"
            for token_id in output.token_ids:
                self.tokens[name].append(token_id)
                self._num_tokens += 1
                if self._left and self._num_tokens % 23 == 0:
                    self._send(self._left.pop(0))
            if output.finish_reason is not None and not is_ending:
                self.reasons[name] = output.finish_reason
            elif name in self._aborted and len(self.tokens[name]) >= 4:
                self._aborted.discard(name)
                self.reasons[name] = FinishReason.ABORT
                self.loop.call(lambda engine, name=name: engine.abort(name))
        if len(self.reasons) == len(self.tokens):
            self._ended.set()
        elif self._left and len(self.reasons) + len(self._left) == len(self.tokens):
            self._send(self._left.pop(0))  # no other request produces tokens

    def _on_failure(self, error: BaseException) -> None:
        self.failures.append(error)
        self._ended.set()


@pytest.mark.parametrize("seed", slow_except(range(6), {0}))
@pytest.mark.parametrize("memory", [1 << 20, 1 << 17], ids=["plenty", "scarce"])
def test_tokens_equal_those_of_synchronous_scheduling(model: Path, seed: int, memory: int) -> None:
    requests = [random_request(random.Random(1000 * seed + number), str(number)) for number in range(25)]
    found, expected = (
        Clients(engine_of(model, ahead, kv_cache_memory_bytes=memory), [_copy(request) for request in requests])
        for ahead in (True, False)
    )
    for clients in (found, expected):
        clients.run(at_once=10)
    assert found.tokens == expected.tokens
    assert found.reasons == expected.reasons
    assert found.num_launched_ahead > 5
    assert expected.num_launched_ahead == 0


def test_drafts_change_no_token_and_leave_other_steps_asynchronous(model: Path) -> None:
    """Two tokens repeat, so that there are drafts; other outputs hardly repeat."""
    likely = SamplingParams(temperature=1.0, seed=3, logit_bias={7: 20.0, 8: 20.0}, ignore_eos=True, max_tokens=80)
    lists = [
        [Request(RequestId(str(n)), [7, 8, 7 + n], 3, replace(sampling, seed=n, max_tokens=80)) for n in range(4)]
        for sampling in (likely, SamplingParams(temperature=2.0, ignore_eos=True))
    ]
    drafted = []
    for requests in lists:
        engine = engine_of(model, True, speculative_config=parse_json('{"method": "ngram"}'))
        found, expected = (
            Clients(engine, requests),
            Clients(engine_of(model, False), [_copy(each) for each in requests]),
        )
        for clients in (found, expected):
            clients.run(at_once=4)
        assert found.tokens == expected.tokens
        counters = engine.stats().speculation
        drafted.append(counters.num_draft_tokens)
        assert found.num_launched_ahead > 20 or requests is lists[0]
    assert drafted[0] > drafted[1]


@pytest.mark.parametrize("seed", slow_except(range(12), {0, 1}))
def test_prompts_that_share_a_small_budget_get_the_same_tokens(model: Path, seed: int) -> None:
    """Chunks of one token are among the decodes and sample nothing; outputs of one token end at once."""
    draw = random.Random(seed)
    sizes = [(draw.randrange(1, 90), draw.choice((1, 1, 2, 6, 20))) for _ in range(12)] + [(63, 6), (20, 1)]
    results = []
    for ahead in (True, False):
        requests = [
            Request(RequestId(str(n)), [(7 * n + 5 * j) % (VOCAB_SIZE - 3) + 3 for j in range(length)], length,
                    replace(PLAIN, max_tokens=max_tokens))
            for n, (length, max_tokens) in enumerate(sizes)
        ]  # fmt: skip
        clients = Clients(engine_of(model, ahead), requests)
        clients.run(at_once=14)
        results.append(clients.tokens)
    assert results[0] == results[1]


def test_blocks_behind_windows_are_given_back_while_a_step_runs(tmp_path: Path) -> None:
    model = make_checkpoint("gemma3", tmp_path / "model")
    requests = [random_request(random.Random(number), str(number)) for number in range(20)]
    results = []
    for ahead in (True, False):
        clients = Clients(engine_of(model, ahead, kv_cache_memory_bytes=1 << 17), [_copy(each) for each in requests])
        clients.run(at_once=10)
        results.append(clients.tokens)
        assert (clients.num_launched_ahead > 5) == ahead
        assert clients.engine.blocks.num_free == clients.engine.blocks.num_usable
    assert results[0] == results[1]


def test_an_abort_between_two_steps_loses_no_token(model: Path) -> None:
    requests = [Request(RequestId(str(n)), [5, 6, 7 + n], 3, replace(PLAIN, max_tokens=60)) for n in range(6)]
    alone = Clients(engine_of(model, False), [_copy(request) for request in requests])
    alone.run(at_once=6)
    clients = Clients(engine_of(model, True), requests)
    clients.run(at_once=6, aborted=["1", "4"])
    assert {name: clients.tokens[name] for name in "0235"} == {name: alone.tokens[name] for name in "0235"}
    for name in "14":
        assert clients.tokens[name] == alone.tokens[name][: len(clients.tokens[name])]
    assert clients.num_launched_ahead > 20


def test_discarded_tokens_are_not_cached(model: Path) -> None:
    """Scheduling ahead computes one token after the end of a request: later prompts must not find its KV."""
    draw = random.Random(3)
    ends = SamplingParams(temperature=1.0, seed=7, stop_token_ids=frozenset(range(0, VOCAB_SIZE, 5)), max_tokens=200)
    prompts = [draw.choices(range(3, VOCAB_SIZE), k=9) for _ in range(8)]
    first = [Request(RequestId(f"a{n}"), list(p), 9, replace(ends, seed=n)) for n, p in enumerate(prompts)]
    clients = Clients(engine_of(model, True), first)
    clients.run(at_once=8)
    assert FinishReason.STOP in clients.reasons.values()
    longer = [p + clients.tokens[f"a{n}"] + [11, 12] for n, p in enumerate(prompts)]
    plain = replace(PLAIN, max_tokens=12)
    second = [Request(RequestId(f"b{n}"), list(p), len(p), plain) for n, p in enumerate(longer)]
    engine = clients.engine
    for request in second:
        engine.add(request)
    while engine.has_work:
        engine.run(engine.schedule())
    assert engine.scheduler.num_cached_tokens > 50
    fresh = Clients(
        engine_of(model, False),
        [Request(r.request_id, list(p), len(p), plain) for r, p in zip(second, longer, strict=True)],
    )
    fresh.run(at_once=8)
    assert {request.request_id: request.token_ids[request.num_prompt_tokens :] for request in second} == fresh.tokens


def _copy(request: Request) -> Request:
    return Request(request.request_id, list(request.token_ids), request.num_prompt_tokens, request.sampling)
