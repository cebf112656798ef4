"""Faults under continuous load: thousands of lost routers, and attacks."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from tests.faults.attacks import aborted_uploads, poison_bodies, slow_bodies, tiny_chunks
from tests.faults.chaos import Chaos
from tests.faults.cluster import Cluster
from tests.faults.faults import Scene, cut, kill, kill_draining, terminate
from tests.faults.places import Place, bad_links, one_machine
from tests.faults.redis_garbage import garbage_in_redis
from tests.faults.redis_node import RedisNode
from tests.faults.row import Row
from tests.faults.unread import Path, unread_stream

WHILE_STREAMS_RUN = "while streams run"
NUM_AT_ONCE = 4
ENDS = (kill, kill_draining, terminate)
SHARE_OF_CUTS = 0.5  # of all losses; a restart of a router takes seconds
LONGEST_CALM_S = 0.3  # between two losses
NUM_UNREAD_TOKENS = 300
UNREAD_S = 2.0
NUM_GARBAGE = 20  # writes per attack


async def run_router_losses(made: Chaos, row: Row, num_losses: int, num_at_once: int = NUM_AT_ONCE) -> None:
    """Lose routers in turn and in every way, under clients that resume at any of them."""
    cluster = made.cluster
    resumes_before = sum(client.transport.num_resumes for client in cluster.resuming)
    async with made.asking(row, num_at_once) as exchanges:
        for number in range(num_losses):
            row.tries += 1
            victim = cluster.routers[number % len(cluster.routers)]
            lose = cut if made.rng.random() < SHARE_OF_CUTS else made.rng.choice(ENDS)
            await lose(Scene(cluster, exchanges, (), victim), made.rng)
            await cluster.wait_whole()
            await asyncio.sleep(made.rng.uniform(0, LONGEST_CALM_S))
    row.recovery_s += [exchange.longest_pause_s for exchange in exchanges if exchange.token_times_s]
    row.disturbed = sum(client.transport.num_resumes for client in cluster.resuming) - resumes_before
    await made.wait_idle(row)


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack from outside that must not disturb other clients' requests."""

    name: str
    role: str
    run: Callable[[Cluster, random.Random], Awaitable[object]]
    place: Place = one_machine
    is_long: bool = False  # takes a minute on few cores


def _on_a_router(attack: Callable[[str], Awaitable[object]]) -> Callable[[Cluster, random.Random], Awaitable[object]]:
    """Adapt an attack that needs only a router's address."""
    return lambda cluster, rng: attack(rng.choice(cluster.routers).address)


async def leave_streams_unread(cluster: Cluster, rng: random.Random) -> None:
    """Request long streams over every protocol of a router without reading them."""
    async with AsyncExitStack() as stack:
        for path in Path:
            router = rng.choice(cluster.routers)
            address = router.grpc_address if path is Path.GRPC else router.address
            await stack.enter_async_context(unread_stream(address, path, NUM_UNREAD_TOKENS, num_completions=2))
        await asyncio.sleep(UNREAD_S)


async def fill_redis_with_garbage(cluster: Cluster, rng: random.Random) -> None:
    """Write garbage into the registry."""
    for store in cluster.stores:
        assert isinstance(store, RedisNode)
        for _ in range(NUM_GARBAGE):
            await garbage_in_redis(store.url, rng)


ATTACKS = (
    Attack("aborts uploads", "client", _on_a_router(aborted_uploads)),
    Attack("sends bodies byte by byte", "client", _on_a_router(slow_bodies)),
    Attack("sends chunks of a byte", "client", _on_a_router(tiny_chunks)),
    Attack("sends bodies that take long", "client", _on_a_router(poison_bodies), is_long=True),
    Attack("does not read", "client", leave_streams_unread),
    Attack("garbage", "redis", fill_redis_with_garbage, bad_links),
)


def attacks_on(place: Place, only: str = "") -> list[Attack]:
    """Return the attacks for clusters of a place; `only`: part of role and name to select."""
    return [attack for attack in ATTACKS if attack.place is place and only in f"{attack.role} {attack.name}"]


async def run_attack(made: Chaos, attack: Attack, row: Row, num_at_once: int = 4) -> None:
    """Run an attack under load; no client may be disturbed, and afterwards no block may be held."""
    row.tries += 1
    async with made.asking(row, num_at_once) as exchanges:
        await attack.run(made.cluster, made.rng)
    row.recovery_s += [exchange.longest_pause_s for exchange in exchanges if exchange.token_times_s]
    await made.wait_idle(row)
