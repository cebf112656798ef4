"""Workloads of the routing comparison: prompts of token ids, arrival times and output lengths."""

import csv
import random
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.engine.tokens import continuation

TRACE = Path(__file__).parents[1] / "data" / "mooncake_conversation.csv"
TRACE_BLOCK_TOKENS = 512  # tokens per hash id of the trace
NUM_SYSTEM_PROMPTS = 10
MAX_TURNS = 12


@dataclass(frozen=True, slots=True)
class Turn:
    """One request."""

    due_s: float  # from the start
    token_ids: list[int]
    num_output_tokens: int
    after: int | None = None  # index of the previous turn of its conversation, whose response it contains


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests ordered by time."""

    name: str
    turns: list[Turn]

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens of all requests."""
        return sum(len(turn.token_ids) for turn in self.turns)

    def reusable_share(self, spec: WorkerSpec) -> float:
        """Return the fraction of prompt tokens that a single unlimited prefix cache would hit, in whole blocks."""
        seen: set[int] = set()
        num_reusable = 0
        for turn in self.turns:
            num_reusable += spec.block_size * sum(prefix in seen for prefix in _prefixes(turn.token_ids, spec))
            answer = continuation(turn.token_ids, turn.num_output_tokens, spec)
            seen.update(_prefixes(turn.token_ids + answer[:-1], spec))  # the KV of the last token is never computed
        return num_reusable / self.num_prompt_tokens


def _prefixes(token_ids: list[int], spec: WorkerSpec) -> Iterator[int]:
    """Yield a hash of each whole block with its prefix."""
    prefix = 0
    for start in range(0, len(token_ids) - spec.block_size + 1, spec.block_size):
        prefix = hash((prefix, *token_ids[start : start + spec.block_size]))
        yield prefix


def chat(spec: WorkerSpec, seconds: float, sessions_per_s: float, seed: int) -> Workload:
    """Return conversations of about five turns, each with one of ten system prompts, Zipf-distributed (exponent 1).

    Each turn's prompt has all earlier turns, including responses, and a new question. Sessions arrive as a Poisson
    process; the next question follows after an exponential think time, or at the end of the response if that is later.
    """
    rng = random.Random(seed)
    system_prompts = [_tokens(rng, spec, rng.randint(500, 3000)) for _ in range(NUM_SYSTEM_PROMPTS)]
    zipf = list(accumulate(1 / rank for rank in range(1, NUM_SYSTEM_PROMPTS + 1)))
    conversations: list[list[Turn]] = []
    starts_s = 0.0
    while (starts_s := starts_s + rng.expovariate(sessions_per_s)) < seconds:
        system_prompt = system_prompts[bisect_left(zipf, rng.random() * zipf[-1])]
        conversations.append(list(_conversation(rng, spec, system_prompt, starts_s, seconds)))
    return Workload("chat", _merge(conversations))


def _conversation(
    rng: random.Random, spec: WorkerSpec, system_prompt: list[int], starts_s: float, seconds: float
) -> Iterator[Turn]:
    history, due_s = list(system_prompt), starts_s
    for number in range(MAX_TURNS):
        if due_s >= seconds or (number > 0 and rng.random() < 0.2):
            return
        history += _tokens(rng, spec, min(2000, max(20, round(rng.lognormvariate(5.0, 0.8)))))
        num_output_tokens = rng.randint(16, 48)
        yield Turn(due_s, list(history), num_output_tokens)
        history += continuation(history, num_output_tokens, spec)
        due_s += 2.0 + rng.expovariate(1 / 4.0)


def _merge(conversations: list[list[Turn]]) -> list[Turn]:
    """Return all turns ordered by time, each with the index of its previous turn."""
    ordered = sorted(
        ((turn, index, number) for index, turns in enumerate(conversations) for number, turn in enumerate(turns)),
        key=lambda each: each[0].due_s,
    )
    places = {(index, number): place for place, (_, index, number) in enumerate(ordered)}
    return [
        Turn(turn.due_s, turn.token_ids, turn.num_output_tokens, places.get((index, number - 1)))
        for turn, index, number in ordered
    ]


def mooncake(spec: WorkerSpec, seconds: float, length_scale: float, time_scale: float) -> Workload:
    """Return the first requests of Mooncake's conversation trace, with scaled lengths and times.

    A hash id of the trace becomes distinct tokens, a whole number of blocks. Raises ValueError if the scale does not
    allow that, or if the excerpt ends before `seconds`.
    """
    num_tokens = TRACE_BLOCK_TOKENS * length_scale
    if num_tokens % spec.block_size:
        raise ValueError(f"a trace block of {num_tokens} tokens is not a whole number of {spec.block_size}")
    turns: list[Turn] = []
    with TRACE.open() as lines:
        for record in csv.DictReader(lines):
            due_s = int(record["timestamp_ms"]) / 1000 * time_scale
            if due_s >= seconds:
                return Workload("mooncake", turns)
            tokens = [
                token
                for hash_id in _expand(record["hash_ids"])
                for token in _tokens(random.Random(hash_id), spec, round(num_tokens))
            ]
            length = max(1, round(int(record["input_length"]) * length_scale))
            turns.append(Turn(due_s, tokens[:length], max(1, round(int(record["output_length"]) * length_scale))))
    raise ValueError(f"the excerpt of the trace ends after {turns[-1].due_s:.0f} s, before {seconds:.0f} s")


def _expand(runs: str) -> Iterator[int]:
    """Expand ranges like "0 14-27" into numbers."""
    for run in runs.split():
        first, _, last = run.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _tokens(rng: random.Random, spec: WorkerSpec, count: int) -> list[int]:
    return rng.choices(range(spec.first_token_id, spec.first_token_id + spec.num_token_ids), k=count)
