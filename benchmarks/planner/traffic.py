"""Synthetic traffic for the twin: arrivals at a varying rate, random lengths, and conversations that share prefixes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from math import exp, log1p, pi, sin, sqrt
from random import Random

from baton.engine.kv.block_hash import HASH_BYTES
from baton.simulation.twin.trace_request import TraceRequest

Rate = Callable[[float], float]  # requests per second at a time in seconds
MAX_TOKENS = 60_000


@dataclass(frozen=True, slots=True)
class Lengths:
    """Log-normal lengths in tokens."""

    mean: float
    cv: float  # coefficient of variation

    def draw(self, random: Random) -> int:
        """Return a length; at least 1."""
        sigma2 = log1p(self.cv * self.cv)
        value = self.mean * exp(sqrt(sigma2) * random.gauss(0, 1) - sigma2 / 2)
        return max(1, min(MAX_TOKENS, round(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Conversations that begin at a varying rate."""

    seconds: float
    rate: Rate  # of requests; conversations begin at this rate divided by `num_turns`
    prompt: Lengths  # new tokens of a turn
    output: Lengths
    num_turns: float = 1.0  # mean of a geometric distribution
    pause_s: float = 20.0  # mean between a turn and the next
    num_shared_tokens: int = 0  # prefix of every conversation

    def requests(self, seed: int, block_size: int) -> list[TraceRequest]:
        """Return the requests in order of arrival."""
        random = Random(seed)
        shared = random.randbytes(self.num_shared_tokens // block_size * HASH_BYTES)
        turns: list[tuple[float, int, int, bytes]] = []  # time, tie-break, tokens so far, and their hashes
        for number, start_s in enumerate(self._starts(random)):
            turns.append((start_s, number, self.num_shared_tokens, shared))
        requests = []
        while turns:
            due_s, number, num_known, hashes = heappop(turns)
            if due_s >= self.seconds:
                continue
            num_prompt = min(MAX_TOKENS, num_known + self.prompt.draw(random))
            hashes = _extended(hashes, num_prompt // block_size, random)
            num_output = self.output.draw(random)
            requests.append(TraceRequest(due_s, num_prompt, num_output, hashes))
            if random.random() < 1 - 1 / self.num_turns:
                num_next = min(MAX_TOKENS, num_prompt + num_output)
                later_s = due_s + random.expovariate(1 / self.pause_s)
                heappush(turns, (later_s, number, num_next, _extended(hashes, num_next // block_size, random)))
        return requests

    def _starts(self, random: Random) -> Iterator[float]:
        """Yield the times of a Poisson process with this rate, by thinning (Lewis and Shedler, 1979)."""
        most = max(self.rate(self.seconds * place / 1000) for place in range(1001)) * 1.05 / self.num_turns
        now_s = random.expovariate(most)
        while now_s < self.seconds:
            if random.random() * most < self.rate(now_s) / self.num_turns:
                yield now_s
            now_s += random.expovariate(most)


def steady(rate: float) -> Rate:
    """Return a constant rate."""
    return lambda _: rate


def day(mean: float, day_s: float, depth: float = 0.8) -> Rate:
    """Return a rate with a daily pattern, lowest at the start: between `1 - depth` and `1 + depth` times the mean."""
    return lambda now_s: mean * (1 - depth * sin(pi / 2 + 2 * pi * now_s / day_s))


def bursts(low: float, high: float, period_s: float) -> Rate:
    """Return a rate that is high in the second half of each period."""
    return lambda now_s: high if now_s % period_s >= period_s / 2 else low


def _extended(hashes: bytes, num_blocks: int, random: Random) -> bytes:
    return hashes + random.randbytes(max(0, num_blocks * HASH_BYTES - len(hashes)))
