"""What can happen to a cluster, and when."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.faults.cluster import Cluster
from tests.faults.node import Node
from tests.faults.workload import Exchange

Inject = Callable[[Cluster, Node, random.Random], Awaitable[None]]
Reach = Callable[[Sequence[Exchange], float, random.Random], Awaitable[None]]  # a phase, by the usual TTFT in seconds

LONGEST_PAUSE_S = 1.0


async def kill(cluster: Cluster, node: Node, rng: random.Random) -> None:
    """The process is gone at once; it starts again after the try."""
    node.signal(signal.SIGKILL)
    await node.wait_end()


async def stop(cluster: Cluster, node: Node, rng: random.Random) -> None:
    """The process stands still for a while, with its connections open."""
    node.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(rng.uniform(0.1, LONGEST_PAUSE_S))
    finally:
        node.signal(signal.SIGCONT)


async def terminate(cluster: Cluster, node: Node, rng: random.Random) -> None:
    """The process is told to end, as in a rolling restart: its drain is too short for what it has to do."""
    node.signal(signal.SIGTERM)
    status = await node.wait_end()
    assert status == 0, f"{node.name} ended with status {status}"


async def kill_draining(cluster: Cluster, node: Node, rng: random.Random) -> None:
    """The process is killed while it drains."""
    node.signal(signal.SIGTERM)
    await asyncio.sleep(rng.uniform(0, 0.6))
    node.signal(signal.SIGKILL)
    await node.wait_end()


async def cut(cluster: Cluster, node: Node, rng: random.Random) -> None:
    """The connections between routers and the worker break."""
    await cluster.proxies[node.name].cut()


async def swallow(cluster: Cluster, node: Node, rng: random.Random) -> None:
    """Nothing gets through between routers and the worker for a while."""
    proxy = cluster.proxies[node.name]
    proxy.swallow()
    try:
        await asyncio.sleep(rng.uniform(0.1, LONGEST_PAUSE_S))
    finally:
        proxy.flow()


async def delay(cluster: Cluster, node: Node, rng: random.Random) -> None:
    """All that is sent between routers and the worker is late for a while."""
    proxy = cluster.proxies[node.name]
    proxy.delay_s = rng.uniform(0.01, 0.1)
    try:
        await asyncio.sleep(rng.uniform(0.1, LONGEST_PAUSE_S))
    finally:
        proxy.delay_s = 0.0


async def queued(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """The prompts have hardly begun."""
    await asyncio.sleep(rng.uniform(0, 0.15) * ttft_s)


async def prefilling(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """Between two chunks of the prompts; the first blocks are on their way."""
    await asyncio.sleep(rng.uniform(0.15, 0.8) * ttft_s)


async def handing_over(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """The last blocks are on their way."""
    await asyncio.sleep(rng.uniform(0.8, 1.1) * ttft_s)


async def first_token(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """A client has just got its first token."""
    waits = [asyncio.ensure_future(exchange.wait_news(1)) for exchange in exchanges]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


async def decoding(exchanges: Sequence[Exchange], ttft_s: float, rng: random.Random) -> None:
    """In the middle of the answers."""
    await rng.choice(exchanges).wait_news(rng.randint(2, 12))


PHASES: Mapping[str, Reach] = {
    "queued": queued,
    "prefilling": prefilling,
    "handing over": handing_over,
    "first token": first_token,
    "decoding": decoding,
}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a process of a role; `inject` None: clients cancel."""

    name: str
    role: str
    inject: Inject | None
    phases: tuple[str, ...] = tuple(PHASES)
    num_requests: int = 4  # at a time


FAULTS = (
    *(Fault("killed", role, kill) for role in ("prefill", "decode")),
    *(Fault("stopped", role, stop) for role in ("prefill", "decode")),
    *(Fault("restarted", role, terminate) for role in ("prefill", "decode")),
    *(Fault("killed draining", role, kill_draining) for role in ("prefill", "decode")),
    *(Fault("cut off", role, cut) for role in ("prefill", "decode")),
    *(Fault("unheard", role, swallow) for role in ("prefill", "decode")),
    *(Fault("late", role, delay) for role in ("prefill", "decode")),
    Fault("killed", "router", kill),
    Fault("restarted", "router", terminate),
    Fault("cancelled", "client", None),
    Fault("cancelled alone", "client", None, num_requests=1),
)
