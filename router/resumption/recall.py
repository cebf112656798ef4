"""Recall of the output of a resumed request from the decode workers, which remember it.

1. Ask all decode workers at once for the outputs of the completions. A worker that still runs the request aborts it.
2. Ignore outputs of another prompt or seed. Of the rest, take those that agree with the client's position.
3. Generate again what no worker remembers. It must agree with the position, too, before the client gets more.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, replace
from itertools import islice, product

from baton.protos import common_pb2
from baton.protos.worker_pb2 import RecalledOutput
from baton.router.errors import ResumeFailed
from baton.router.generation import DELTA_BYTES, CompletionDelta, Generation
from baton.router.metrics.metrics import RouterMetrics
from baton.router.resumption.resumption import CompletionStart, OutputTally, Position, checksum
from baton.router.workers.pool import WorkerPool

RECALL_TIMEOUT_S = 1.0  # of all workers together: a stopped worker must not delay the client
MAX_HELD_BYTES = 64 << 20  # of one request: deltas of completions that wait until all reach the client's position
MAX_ALL_HELD_BYTES = 256 << 20  # of all requests of a model in a router process
MAX_COMBINATIONS = 16  # of outputs of several completions that are compared with a position
TURN_TOKENS = 1 << 14  # of outputs that are compared in one turn of the event loop
COMPLETE = (common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH)


@dataclass(frozen=True, slots=True)
class Found:
    """Output of a completion, and the fingerprint of the worker that remembered it."""

    output: RecalledOutput
    fingerprint: str

    @property
    def num_tokens(self) -> int:
        """Number of tokens of the output."""
        return len(self.output.token_ids)


NOTHING = Found(RecalledOutput(), "")


class Candidates:
    """Remembered outputs of one completion; outputs that the client cannot distinguish count once."""

    def __init__(self, num_seen: int) -> None:
        """`num_seen`: output tokens that the client has."""
        self._num_seen = num_seen
        self._longest: Found | None = None
        self._by_checksum: dict[int, Found] = {}  # of the tokens that the client has: the longest such output

    @property
    def longest(self) -> Found:
        """The longest output, whether or not it reaches the client's position."""
        return self._longest or NOTHING

    @property
    def is_far_enough(self) -> bool:
        """Whether the longest output reaches the client's position; an empty one reaches 0."""
        return self.longest.num_tokens >= self._num_seen

    def add(self, found: Found) -> None:
        """Add an output that follows the prompt."""
        if self._longest is None or found.num_tokens > self._longest.num_tokens:
            self._longest = found
        if found.num_tokens >= self._num_seen:
            begin = checksum(found.output.token_ids[: self._num_seen])
            known = self._by_checksum.get(begin)
            if known is None or found.num_tokens > known.num_tokens:
                self._by_checksum[begin] = found

    def far_enough(self, or_nothing: bool) -> list[tuple[int, Found]]:
        """Return the outputs that reach the client's position, longest first, with checksums of the seen tokens.

        `or_nothing`: include an empty output if no worker remembers one and the client has no tokens.
        """
        if or_nothing and self._longest is None and not self._num_seen:
            return [(checksum(()), NOTHING)]
        return sorted(self._by_checksum.items(), key=lambda each: each[1].num_tokens, reverse=True)


@dataclass(slots=True)
class HeldBytes:
    """Size in memory of the held deltas of all requests."""

    count: int = 0


class HeldDeltas:
    """Deltas of one request that wait until all of its completions reach the client's position."""

    def __init__(self, all_bytes: HeldBytes) -> None:
        self.num_bytes = 0
        self._all_bytes = all_bytes
        self._deltas: list[CompletionDelta] = []

    def add(self, delta: CompletionDelta) -> None:
        """Hold a delta."""
        num_bytes = DELTA_BYTES + delta.num_bytes
        self.num_bytes += num_bytes
        self._all_bytes.count += num_bytes
        self._deltas.append(delta)

    def close(self) -> list[CompletionDelta]:
        """Return the deltas, and hold none."""
        self._all_bytes.count -= self.num_bytes
        deltas, self._deltas, self.num_bytes = self._deltas, [], 0
        return deltas


class Recall:
    """Finds the positions at which resumed requests continue."""

    def __init__(
        self,
        pool: WorkerPool,
        metrics: RouterMetrics,
        timeout_s: float = RECALL_TIMEOUT_S,
        max_held_bytes: int = MAX_HELD_BYTES,
        max_all_held_bytes: int = MAX_ALL_HELD_BYTES,
    ) -> None:
        self._pool = pool
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._max_held_bytes = max_held_bytes
        self._max_all_held_bytes = max_all_held_bytes
        self.held_bytes = HeldBytes()

    async def resumed(self, generations: Sequence[Generation], position: Position) -> list[Generation]:
        """Return the generations of one request with the starts of their completions. Raises ResumeFailed."""
        outputs = await self._choose(generations, position)
        left = iter(zip(outputs, position.counts, strict=True))
        resumed = [
            replace(
                generation,
                starts=tuple(_start(generation, index, *next(left)) for index in range(generation.request.n)),
            )
            for generation in generations
        ]
        for generation in resumed:
            most = generation.sampling.max_tokens
            for start in generation.starts:
                if len(start.token_ids) < start.num_seen > most:
                    raise self._failure(f"its position has {start.num_seen} tokens of a completion of at most {most}")
        return resumed

    async def checked(
        self,
        deltas: AsyncGenerator[CompletionDelta, None],
        position: Position,
        generations: Sequence[Generation],
        tally: OutputTally,
    ) -> AsyncGenerator[CompletionDelta, None]:
        """Yield the deltas of the generations once they have reached the position, as the tally has then, too.

        Raises ResumeFailed if the output differs from the client's, or if too much would be buffered until then.
        """
        held = HeldDeltas(self.held_bytes)
        num_reasoning_tokens = Counter[int]()  # by completion, of deltas that are not held
        is_checked = False
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(aclosing(deltas))
            stack.callback(held.close)
            async for delta in deltas:
                if is_checked:
                    delta.num_reasoning_tokens += num_reasoning_tokens.pop(delta.index, 0)
                    yield delta
                    continue
                tally.add(delta.index, delta.seen)
                if not _has_more(delta):
                    num_reasoning_tokens[delta.index] += delta.num_reasoning_tokens
                else:
                    delta.num_reasoning_tokens += num_reasoning_tokens.pop(delta.index, 0)
                    held.add(delta)
                if tally.has_reached(position):
                    if not tally.is_at(position):
                        break
                    is_checked = True
                    self._metrics.requests_resumed(_how(generations)).inc()
                    for each in held.close():
                        yield each
                elif held.num_bytes > self._max_held_bytes:
                    raise self._failure("its completions are too far apart to be generated again together")
                elif self.held_bytes.count > self._max_all_held_bytes:
                    raise self._failure("too many resumed requests are generated again; try again later")
        if not is_checked:
            raise self._failure("the regenerated output differs from the client's")

    async def _choose(self, generations: Sequence[Generation], position: Position) -> Sequence[Found]:
        """Return a remembered output, or NOTHING, for each completion, such that they agree with the position."""
        wanted = {
            generation.resume_key(index): (generation, index)
            for generation in generations
            for index in range(generation.request.n)
        }
        candidates = {key: Candidates(count) for key, count in zip(wanted, position.counts, strict=True)}
        async with aclosing(self._ask(list(wanted))) as responses:
            async for response in responses:
                await _add(response, wanted, candidates)
                if (chosen := _agreeing(candidates.values(), position)) is not None:
                    return chosen  # further outputs could not change the result
        if (chosen := _agreeing(candidates.values(), position, or_nothing=True)) is not None:
            return chosen
        if all(each.is_far_enough for each in candidates.values()):
            raise self._failure("the remembered output differs from the client's")
        if position.digest is None and any(position.counts):
            raise self._failure("no worker remembers the output, and the position has no digest to compare it with")
        return [each.longest for each in candidates.values()]

    async def _ask(self, keys: Sequence[bytes]) -> AsyncGenerator[Sequence[Found], None]:
        """Yield the outputs of each worker as it responds, until the timeout."""
        connections, known = self._pool.reached, set(keys)
        calls = [asyncio.create_task(each.recall(keys, self._timeout_s)) for each in connections]
        fingerprints = [each.description.fingerprint if each.description else "" for each in connections]
        by_call = dict(zip(calls, fingerprints, strict=True))
        try:
            while calls:
                done, waiting = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
                calls = list(waiting)
                for call in done:
                    outputs = () if call.cancelled() else call.result()  # cancelled: its connection was closed
                    yield [Found(each, by_call[call]) for each in outputs if each.resume_key in known]
        finally:
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)

    def _failure(self, text: str) -> ResumeFailed:
        self._metrics.requests_resumed("failed").inc()
        return ResumeFailed(f"the stream cannot be resumed: {text}")


async def _add(
    response: Sequence[Found],
    wanted: Mapping[bytes, tuple[Generation, int]],
    candidates: Mapping[bytes, Candidates],
) -> None:
    """Add a worker's outputs that belong to their prompts, in several turns of the event loop."""
    num_tokens = 0
    for each in response:
        generation, index = wanted[each.output.resume_key]
        if _is_of(each.output, generation, index):
            candidates[each.output.resume_key].add(each)
            num_tokens += each.num_tokens
        if num_tokens >= TURN_TOKENS:
            num_tokens = 0
            await asyncio.sleep(0)


def _agreeing(candidates: Iterable[Candidates], position: Position, or_nothing: bool = False) -> Sequence[Found] | None:
    """Return the longest outputs of the completions that reach the position and agree with it; None: there are none."""
    far_enough = [each.far_enough(or_nothing) for each in candidates]
    for combination in islice(product(*far_enough), MAX_COMBINATIONS):
        if position.agrees_with([begin for begin, _ in combination]):
            return [found for _, found in combination]
    return None


def _is_of(output: RecalledOutput, generation: Generation, index: int) -> bool:
    """Return whether an output has the completion's seed and the prompt's length in this router's tokens."""
    seed = generation.completion_sampling(index).seed
    return output.num_prompt_tokens == len(generation.token_ids) and output.seed == seed


def _has_more(delta: CompletionDelta) -> bool:
    """Return whether a delta has anything but tokens that the client has."""
    return not delta.seen or bool(
        delta.token_ids or delta.prompt_logprobs or delta.finish_reason or delta.served_by is not None
    )


def _how(generations: Sequence[Generation]) -> str:
    is_recalled = any(start.fingerprint for generation in generations for start in generation.starts)
    return "recalled" if is_recalled else "regenerated"


def _start(generation: Generation, index: int, found: Found, num_seen: int) -> CompletionStart:
    """Return the usable part of a remembered output. Workers do not remember logprobs: these are computed again."""
    sampling = generation.completion_sampling(index)
    token_ids = tuple(found.output.token_ids)
    if sampling.prompt_logprobs is not None:
        return CompletionStart(num_seen, fingerprint=found.fingerprint)
    taken = token_ids if sampling.logprobs is None else token_ids[:num_seen]
    is_complete = len(taken) == len(token_ids) and found.output.finish_reason in COMPLETE
    return CompletionStart(num_seen, taken, found.output.finish_reason if is_complete else 0, found.fingerprint)
