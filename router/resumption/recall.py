"""Where the choices of a resumed request go on: behind what decode workers remember, or from the prompt.

1. All decode workers are asked at once for the choices' outputs; one that runs the request gives it up.
2. Outputs of another prompt or seed do not count. Of the rest, those that agree with the client's position are taken.
3. What no worker remembers is generated again. It must agree with the position too, before the client gets more.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import islice, product

from baton.protos import common_pb2
from baton.protos.worker_pb2 import RecalledOutput
from baton.router.errors import ResumeFailed
from baton.router.generation import DELTA_BYTES, CompletionDelta, Generation
from baton.router.metrics.metrics import RouterMetrics
from baton.router.resumption.resumption import CompletionStart, OutputTally, Position, checksum
from baton.router.workers.pool import WorkerPool

RECALL_TIMEOUT_S = 1.0  # of all workers together: one that is stopped must not hold a client up
MAX_HELD_BYTES = 64 << 20  # of news of choices that wait for others to come to the client's position
MAX_COMBINATIONS = 16  # of outputs of several choices that are compared with a position
TURN_TOKENS = 1 << 14  # of outputs that are compared with a position before other requests have their turn
COMPLETE = (common_pb2.FINISH_REASON_STOP, common_pb2.FINISH_REASON_LENGTH)


@dataclass(frozen=True, slots=True)
class Found:
    """Output of a choice, and the fingerprint of the worker that remembered it."""

    output: RecalledOutput
    fingerprint: str

    @property
    def num_tokens(self) -> int:
        """Tokens of the output."""
        return len(self.output.token_ids)


NOTHING = Found(RecalledOutput(), "")


class Candidates:
    """Outputs of one choice that workers remember, of which those that the client cannot tell apart count once."""

    def __init__(self, num_seen: int) -> None:
        """`num_seen`: the choice's tokens that the client has."""
        self._num_seen = num_seen
        self._longest: Found | None = None
        self._by_checksum: dict[int, Found] = {}  # of the tokens that the client has: the longest such output

    @property
    def longest(self) -> Found:
        """The longest output, far enough or not."""
        return self._longest or NOTHING

    @property
    def is_far_enough(self) -> bool:
        """Whether an output, or none, reaches the client's position."""
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
        """Return the outputs that reach the client's position, the longest first, by the checksum of what it has.

        `or_nothing`: if no worker remembers an output, the client may have none either.
        """
        if or_nothing and self._longest is None and not self._num_seen:
            return [(checksum(()), NOTHING)]
        return sorted(self._by_checksum.items(), key=lambda each: each[1].num_tokens, reverse=True)


class Recall:
    """Finds out where resumed requests go on."""

    def __init__(
        self,
        pool: WorkerPool,
        metrics: RouterMetrics,
        timeout_s: float = RECALL_TIMEOUT_S,
        max_held_bytes: int = MAX_HELD_BYTES,
    ) -> None:
        self._pool = pool
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._max_held_bytes = max_held_bytes

    async def resumed(self, generations: Sequence[Generation], position: Position) -> list[Generation]:
        """Return the generations of one request with their choices' starts. Raises ResumeFailed."""
        outputs = await self._choose(generations, position)
        left = iter(zip(outputs, position.counts, strict=True))
        return [
            replace(
                generation,
                starts=tuple(_start(generation, index, *next(left)) for index in range(generation.request.n)),
            )
            for generation in generations
        ]

    async def checked(
        self,
        news: AsyncGenerator[CompletionDelta, None],
        position: Position,
        generations: Sequence[Generation],
        tally: OutputTally,
    ) -> AsyncGenerator[CompletionDelta, None]:
        """Yield the generations' news once they have come to the position, where the tally is from then on.

        Raises ResumeFailed if they do not agree with the position, or if too much would have to be held until then.
        """
        held: list[CompletionDelta] = []
        num_held_bytes = 0
        is_checked = False
        async with aclosing(news):
            async for delta in news:
                if is_checked:
                    yield delta
                    continue
                tally.add(delta.index, delta.seen)
                if _has_more(delta):
                    held.append(delta)
                    num_held_bytes += DELTA_BYTES + delta.num_bytes
                if tally.has_reached(position):
                    if not tally.is_at(position):
                        break
                    is_checked = True
                    self._metrics.requests_resumed(_how(generations)).inc()
                    for each in held:
                        yield each
                    held.clear()
                elif num_held_bytes > self._max_held_bytes:
                    raise self._failure("its choices are too far apart to be generated again together")
        if not is_checked:
            raise self._failure("the output, generated again, is not what the client has of it")

    async def _choose(self, generations: Sequence[Generation], position: Position) -> Sequence[Found]:
        """Return an output for each choice, or NOTHING, that agrees with the position as far as it goes."""
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
                    return chosen  # the other workers cannot know more that matters
        if (chosen := _agreeing(candidates.values(), position, or_nothing=True)) is not None:
            return chosen
        if all(each.is_far_enough for each in candidates.values()):
            raise self._failure("the output that workers remember is not what the client has of it")
        if position.digest is None and any(position.counts):
            raise self._failure("no worker remembers the output, and the position has no digest to compare it with")
        return [each.longest for each in candidates.values()]

    async def _ask(self, keys: Sequence[bytes]) -> AsyncGenerator[Sequence[Found], None]:
        """Yield the outputs of each worker, as they come, until the time-out."""
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
    """Add the outputs of a worker that follow their prompts, with turns of the event loop in between."""
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
    """Return an output of each choice, the longest that reach the position and agree with it; None: there are none."""
    far_enough = [each.far_enough(or_nothing) for each in candidates]
    for combination in islice(product(*far_enough), MAX_COMBINATIONS):
        if position.agrees_with([begin for begin, _ in combination]):
            return [found for _, found in combination]
    return None


def _is_of(output: RecalledOutput, generation: Generation, index: int) -> bool:
    """Whether the output follows the prompt as this router tokenises it, with the choice's seed."""
    seed = generation.completion_sampling(index).seed
    return output.num_prompt_tokens == len(generation.token_ids) and output.seed == seed


def _has_more(delta: CompletionDelta) -> bool:
    """Whether a delta has more than tokens that the client has."""
    return not delta.seen or bool(
        delta.token_ids or delta.prompt_logprobs or delta.finish_reason or delta.served_by is not None
    )


def _how(generations: Sequence[Generation]) -> str:
    is_recalled = any(start.fingerprint for generation in generations for start in generation.starts)
    return "recalled" if is_recalled else "regenerated"


def _start(generation: Generation, index: int, found: Found, num_seen: int) -> CompletionStart:
    """What is taken of a choice's output. Logprobs are not remembered: tokens that need them are generated again."""
    sampling = generation.completion_sampling(index)
    token_ids = tuple(found.output.token_ids)
    if sampling.prompt_logprobs is not None:
        return CompletionStart(num_seen, fingerprint=found.fingerprint)
    taken = token_ids if sampling.logprobs is None else token_ids[:num_seen]
    is_complete = len(taken) == len(token_ids) and found.output.finish_reason in COMPLETE
    return CompletionStart(num_seen, taken, found.output.finish_reason if is_complete else 0, found.fingerprint)
