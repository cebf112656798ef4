"""An engine with drafts of chosen quality, whatever they cost."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from baton.engine.config import EngineConfig
from baton.engine.engine import Engine
from baton.engine.outputs import PositionLogprobs
from baton.engine.request import FinishReason, Request
from baton.engine.speculation.lookup import LookupDrafter
from baton.settings.values import parse_json
from tests.architectures import VOCAB_SIZE
from tests.unit.engine.speculation.free_drafts import FreeDrafts

NGRAM = parse_json('{"method": "ngram", "num_speculative_tokens": 6, "prompt_lookup_min": 1}')
TIMEOUT_S = 60


@dataclass
class Outcome:
    """What a client sees of a request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    num_prompt_logprobs: int = 0
    finish_reason: FinishReason | None = None


class OracleDrafter:
    """Proposes the known continuations of requests, by id, with some wrong tokens in them."""

    def __init__(self, outputs: Mapping[str, Sequence[int]], seed: int, vocab: Sequence[int], right: float) -> None:
        self._outputs = outputs
        self._rng = random.Random(seed)
        self._vocab = vocab
        self._right = right

    def begin_step(self) -> None:
        """Do nothing."""

    def propose(self, request: Request, limit: int) -> list[int]:
        """Propose a random number of tokens."""
        start = request.num_output_tokens
        right = self._outputs[request.request_id][start : start + self._rng.randint(0, limit)]
        return [each if self._rng.random() < self._right else self._rng.choice(self._vocab) for each in right]


def engine_of(model: Path, speculates: bool, **options: object) -> Engine:
    """An engine with small blocks and steps."""
    defaults = {"dtype": "float32", "num_threads": 1, "block_size": 4, "max_num_batched_tokens": 32, "max_num_seqs": 8}
    drafts = {"kv_cache_memory_bytes": 1 << 20, "speculative_config": NGRAM if speculates else None}
    config = EngineConfig(model=str(model), **{**defaults, **drafts, **options})  # type: ignore[arg-type]  # names are the options'
    engine = Engine(config)
    if speculates:
        draft_always(engine)
    return engine


def draft_always(engine: Engine, outputs: Mapping[str, Sequence[int]] | None = None, seed: int = 0) -> None:
    """Let drafts cost nothing, and be the requests' known continuations if these are given."""
    assert engine.speculator is not None
    engine.speculator._costs = FreeDrafts()
    if outputs is not None:
        oracle = OracleDrafter(outputs, seed, range(3, VOCAB_SIZE), right=0.8)
        engine.speculator._drafter = LookupDrafter(oracle, engine.finish_rule)


def run(engine: Engine, requests: Iterable[Request], at_once: int = 8) -> dict[str, Outcome]:
    """Run requests to their ends, a few at once at the start and the others one by one."""
    left = list(requests)
    outcomes = {each.request_id: Outcome() for each in left}
    deadline_s = time.monotonic() + TIMEOUT_S
    for request in left[:at_once]:
        engine.add(request)
    del left[:at_once]
    while engine.has_work or left:
        assert time.monotonic() < deadline_s
        if left:
            engine.add(left.pop(0))
        step = engine.run(engine.schedule())
        engine.check_integrity()
        for output in step.outputs:
            outcome = outcomes[output.request_id]
            outcome.token_ids += output.token_ids
            outcome.logprobs += [each.logprobs for each in output.all_sampled if each.logprobs is not None]
            outcome.num_prompt_logprobs += len(output.prompt_logprobs)
            outcome.finish_reason = output.finish_reason
        if not step.outputs:
            time.sleep(0.001)  # threads of grammars get Python's lock only here
    assert engine.blocks.num_free == engine.blocks.num_usable
    return {str(name): outcome for name, outcome in outcomes.items()}


def copies(requests: Iterable[Request]) -> list[Request]:
    """The same requests, for another engine."""
    return [Request(each.request_id, list(each.token_ids), each.num_prompt_tokens, each.sampling) for each in requests]


def assert_equal(found: Mapping[str, Outcome], expected: Mapping[str, Outcome]) -> None:
    """Assert that clients see the same; logprobs up to the roundings of another batch."""
    assert found.keys() == expected.keys()
    for name, outcome in expected.items():
        other = found[name]
        assert (other.token_ids, other.finish_reason) == (outcome.token_ids, outcome.finish_reason), name
        assert other.num_prompt_logprobs == outcome.num_prompt_logprobs
        assert len(other.logprobs) == len(outcome.logprobs)
        for one, two in zip(other.logprobs, outcome.logprobs, strict=True):
            pairs = list(zip((one.chosen, *one.top), (two.chosen, *two.top), strict=True))
            assert all(a.token_id == b.token_id and a.rank == b.rank for a, b in pairs)
            assert all(abs(a.logprob - b.logprob) < 1e-4 for a, b in pairs)
