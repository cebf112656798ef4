"""Cost of a router's request path: CPU, added latency, and throughput.

Chats of 8 output tokens, streamed or not, with workers that respond at once; small ones have 3 KB, large ones 50 KB.
"""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.routing.client import Answer, Client
from benchmarks.routing.run import ready_system
from benchmarks.routing.system import Chat, Served, Setting, System
from benchmarks.routing.topology import INSTANT

NUM_OUTPUT_TOKENS = 8
SMALL_BYTES, LARGE_BYTES = 3_000, 50_000
RATE = 50.0  # small requests per second: a moderate load
NUM_CONNECTIONS = 16  # for throughput
NUM_PAYLOADS = 400
DOCS = Path(__file__).parents[2] / "docs"
SYSTEM_SHARE = 1 / 3  # of the bytes of a chat; identical for all chats of a size


@dataclass(frozen=True, slots=True)
class Throughput:
    """Throughput with a request in flight on every connection."""

    requests_per_s: float
    cpu_s: float  # CPU of the routers per request


@dataclass(frozen=True, slots=True)
class RequestCost:
    """Cost of one router process."""

    small: Throughput  # not streamed
    small_streamed: Throughput
    large: Throughput
    total_s: list[float]  # of small requests, not streamed, at the moderate rate
    ttft_s: list[float]  # of small streamed requests at the moderate rate


async def measure_cost(system: System, setting: Setting, seconds: float, seed: int) -> RequestCost:
    """Start the system, and measure each metric for `seconds`."""
    chat = system.chats(setting)
    async with ready_system(system, setting, INSTANT) as served:
        await _run_busy(served, _payloads(chat, SMALL_BYTES, True, seed), min(1.0, seconds))
        whole = await _run_at_rate(served, _payloads(chat, SMALL_BYTES, False, seed + 1), seconds, seed)
        streamed = await _run_at_rate(served, _payloads(chat, SMALL_BYTES, True, seed + 2), seconds, seed)
        return RequestCost(
            small=await _run_busy(served, _payloads(chat, SMALL_BYTES, False, seed + 3), seconds),
            small_streamed=await _run_busy(served, _payloads(chat, SMALL_BYTES, True, seed + 4), seconds),
            large=await _run_busy(served, _payloads(chat, LARGE_BYTES, False, seed + 5), seconds),
            total_s=[answer.total_s for answer in whole],
            ttft_s=[answer.ttft_s for answer in streamed],
        )


async def measure_throughput(
    system: System, setting: Setting, num_routers: int, seconds: float, seed: int
) -> Throughput:
    """Measure several router processes with small, non-streamed requests; clients use all of them."""
    chat = system.chats(setting)
    async with ready_system(system, setting, INSTANT, num_routers) as served:
        await _run_busy(served, _payloads(chat, SMALL_BYTES, False, seed), min(1.0, seconds))
        return await _run_busy(served, _payloads(chat, SMALL_BYTES, False, seed + 3), seconds)


async def _run_at_rate(served: Served, payloads: list[bytes], seconds: float, seed: int) -> list[Answer]:
    """Return the answers to Poisson arrivals."""
    rng, client, router = random.Random(seed), Client(), served.routers[0]
    loop = asyncio.get_running_loop()
    due_s = loop.time()
    asked = []
    async with asyncio.TaskGroup() as tasks:
        for number in range(round(RATE * seconds)):
            due_s += rng.expovariate(RATE)
            await asyncio.sleep(due_s - loop.time())
            asked.append(tasks.create_task(client.ask(router.port, payloads[number % len(payloads)])))
    client.close()
    return [task.result() for task in asked]


async def _run_busy(served: Served, payloads: list[bytes], seconds: float) -> Throughput:
    """Keep a request in flight on every connection, with connections spread over the routers."""
    client, numbers = Client(), iter(range(1 << 60))
    loop = asyncio.get_running_loop()
    started_s, cpu_before_s = loop.time(), sum(router.cpu_s() for router in served.routers)

    async def work() -> None:
        while loop.time() - started_s < seconds:
            number = next(numbers)
            port = served.routers[number % len(served.routers)].port
            await client.ask(port, payloads[number % len(payloads)])

    async with asyncio.TaskGroup() as tasks:
        for _ in range(NUM_CONNECTIONS):
            tasks.create_task(work())
    client.close()
    num_answers = next(numbers)
    cpu_s = sum(router.cpu_s() for router in served.routers) - cpu_before_s
    return Throughput(num_answers / (loop.time() - started_s), cpu_s / num_answers)


def _payloads(chat: Chat, num_bytes: int, stream: bool, seed: int) -> list[bytes]:
    return [chat(messages, NUM_OUTPUT_TOKENS, stream) for messages in islice(_chats(num_bytes, seed), NUM_PAYLOADS)]


def _chats(num_bytes: int, seed: int) -> Iterator[list[dict[str, str]]]:
    """Yield endless chats of the project's documentation, with a common system prompt and a new question each."""
    text = "\n".join(path.read_text() for path in sorted(DOCS.glob("*.md")))
    rng = random.Random(seed)
    num_system_bytes = round(num_bytes * SYSTEM_SHARE)
    system = {"role": "system", "content": _excerpt(text, 0, num_system_bytes)}
    while True:
        start = rng.randrange(len(text))
        question = f"{rng.getrandbits(64):x} " + _excerpt(text, start, num_bytes - num_system_bytes)
        yield [system, {"role": "user", "content": question}]


def _excerpt(text: str, start: int, length: int) -> str:
    """Return `length` characters from `start`, wrapping around at the end."""
    return (text[start:] + text * (length // len(text) + 1))[:length]
