"""Closed-loop streaming client of the OpenAI completions API."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

import httpx
import orjson

TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class RequestTimes:
    """One request; seconds."""

    ttft_s: float
    end_to_end_s: float
    num_output_tokens: int
    headers: dict[str, str]

    @property
    def tpot_s(self) -> float:
        """Mean time per output token after the first."""
        return (self.end_to_end_s - self.ttft_s) / max(1, self.num_output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Wave:
    """Requests that were started together."""

    requests: list[RequestTimes]
    elapsed_s: float

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens of all requests over the time until the last has ended."""
        return sum(request.num_output_tokens for request in self.requests) / self.elapsed_s


def percentile(values: Sequence[float], percent: int) -> float:
    """Return a percentile by linear interpolation; for a single value the value."""
    if len(values) == 1 or percent == 50:
        return median(values)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


async def run_wave(url: str, prompts: Sequence[list[int]], num_output_tokens: int) -> Wave:
    """Send all prompts concurrently, greedy, each for exactly `num_output_tokens`."""
    limits = httpx.Limits(max_connections=len(prompts))
    async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits, trust_env=False) as client:
        started_s = time.perf_counter()
        requests = await asyncio.gather(*(_stream(client, prompt, num_output_tokens) for prompt in prompts))
        return Wave(list(requests), time.perf_counter() - started_s)


async def _stream(client: httpx.AsyncClient, prompt: list[int], num_output_tokens: int) -> RequestTimes:
    body = {
        "prompt": prompt,
        "max_tokens": num_output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s = time.perf_counter()
    first_s: float | None = None
    num_tokens = 0
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != httpx.codes.OK:
            raise RuntimeError(f"status {response.status_code}: {(await response.aread()).decode()}")
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            first_s = first_s or time.perf_counter()
            usage = orjson.loads(line[len("data: ") :]).get("usage")
            num_tokens = usage["completion_tokens"] if usage else num_tokens
    if first_s is None or num_tokens != num_output_tokens:
        raise RuntimeError(f"{num_tokens} tokens received, {num_output_tokens} requested")
    return RequestTimes(first_s - started_s, time.perf_counter() - started_s, num_tokens, dict(response.headers))
