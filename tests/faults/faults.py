"""What can happen to a cluster."""

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.faults.cluster import Cluster
from tests.faults.node import BatonNode, Node
from tests.faults.phases import BEFORE_DECODING, PHASES
from tests.faults.places import Place, bad_links, many_machines, one_machine, resuming
from tests.faults.workload import Answer, Exchange

LONGEST_PAUSE_S = 1.0
LONG_PAUSE_S = 20.0  # longer than leases, and than a connection without a sign of life


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is when a fault happens."""

    cluster: Cluster
    exchanges: Sequence[Exchange]
    tasks: "Sequence[asyncio.Task[Answer]]"  # of the exchanges
    victim: Node | None  # a process of the fault's role; None: a client
    cancelled: list[Exchange] = field(default_factory=list)
    others: list[Node] = field(default_factory=list)  # further processes that it happened to

    @property
    def victims(self) -> Sequence[Node]:
        """The processes that may have ended."""
        return (*(() if self.victim is None else (self.victim,)), *self.others)


Inject = Callable[[Scene, random.Random], Awaitable[None]]


async def kill(scene: Scene, rng: random.Random) -> None:
    """The process is gone at once; it starts again after the try."""
    victim = _process(scene)
    victim.signal(signal.SIGKILL)
    await victim.wait_end()


async def stop(scene: Scene, rng: random.Random) -> None:
    """The process stands still for a while, with its connections open."""
    await _stop(scene, rng.uniform(0.1, LONGEST_PAUSE_S))


async def freeze(scene: Scene, rng: random.Random) -> None:
    """The process stands still for so long that nobody waits for it."""
    await _stop(scene, LONG_PAUSE_S)


async def _stop(scene: Scene, pause_s: float) -> None:
    victim = _process(scene)
    victim.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(pause_s)
    finally:
        victim.signal(signal.SIGCONT)


async def terminate(scene: Scene, rng: random.Random) -> None:
    """The process is told to end, as in a rolling restart: its drain is too short for what it has to do."""
    victim = _process(scene)
    victim.signal(signal.SIGTERM)
    status = await victim.wait_end()
    assert status == 0, f"{victim.name} ended with status {status}"


async def kill_draining(scene: Scene, rng: random.Random) -> None:
    """The process is killed while it drains."""
    victim = _process(scene)
    victim.signal(signal.SIGTERM)
    await asyncio.sleep(rng.uniform(0, 0.6))
    victim.signal(signal.SIGKILL)
    await victim.wait_end()


async def kill_with_another(scene: Scene, rng: random.Random) -> None:
    """The process is killed, and at the same moment one of another role: of each role there is one left."""
    role = "prefill" if _process(scene).role == "decode" else "decode"
    busy = {exchange.decode_worker for exchange in scene.exchanges}
    nodes = scene.cluster.of_role(role)
    scene.others.append(rng.choice([node for node in nodes if node.name in busy] or nodes))
    for node in scene.victims:
        node.signal(signal.SIGKILL)
    for node in scene.victims:
        await node.wait_end()


async def kill_with_full_disks(scene: Scene, rng: random.Random) -> None:
    """The process is killed while nobody can write a byte to any file, so that nobody can log it either."""
    nodes = [node for node in scene.cluster.nodes if isinstance(node, BatonNode)]
    for node in nodes:
        node.limit_files(0)
    try:
        await kill(scene, rng)
        await asyncio.wait(scene.tasks)
    finally:
        for node in nodes:
            node.limit_files(-1)


async def cut(scene: Scene, rng: random.Random) -> None:
    """The connections to the worker break."""
    await scene.cluster.proxies[_process(scene).name].cut()


async def swallow(scene: Scene, rng: random.Random) -> None:
    """Nothing gets through to the worker or from it for a while."""
    proxy = scene.cluster.proxies[_process(scene).name]
    proxy.swallow()
    try:
        await asyncio.sleep(rng.uniform(0.1, LONGEST_PAUSE_S))
    finally:
        proxy.flow()


async def delay(scene: Scene, rng: random.Random) -> None:
    """All that is sent to the worker or from it is late for a while."""
    proxy = scene.cluster.proxies[_process(scene).name]
    proxy.delay_s = rng.uniform(0.01, 0.1)
    try:
        await asyncio.sleep(rng.uniform(0.1, LONGEST_PAUSE_S))
    finally:
        proxy.delay_s = 0.0


async def garble(scene: Scene, rng: random.Random) -> None:
    """What comes from the worker has wrong bytes in it for a while, and until some of them came."""
    proxy = scene.cluster.proxies[_process(scene).name]
    proxy.is_garbling = True
    num_before = proxy.num_garbled
    try:
        await asyncio.sleep(rng.uniform(0.1, LONGEST_PAUSE_S))
        while proxy.num_garbled == num_before and not all(task.done() for task in scene.tasks):
            await asyncio.sleep(0.02)
    finally:
        proxy.is_garbling = False


async def unplug(scene: Scene, rng: random.Random) -> None:
    """The worker's machine has no network for a while."""
    await _unplug(scene, rng.uniform(0.1, LONGEST_PAUSE_S))


async def lose(scene: Scene, rng: random.Random) -> None:
    """The worker's machine has no network for so long that nobody waits for it."""
    await _unplug(scene, LONG_PAUSE_S)


async def _unplug(scene: Scene, pause_s: float) -> None:
    machine = scene.cluster.machines[_process(scene).name]
    machine.unplug()
    try:
        await asyncio.sleep(pause_s)
    finally:
        machine.plug()


async def cancel(scene: Scene, rng: random.Random) -> None:
    """A client goes away, if there is one that has not its whole answer."""
    places = [place for place, task in enumerate(scene.tasks) if not task.done()]
    if places:
        place = rng.choice(places)
        scene.cancelled.append(scene.exchanges[place])
        scene.tasks[place].cancel()


def _process(scene: Scene) -> Node:
    assert scene.victim is not None
    return scene.victim


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a process of a role, or to what is between it and the others."""

    name: str
    role: str
    inject: Inject
    place: Place = one_machine
    phases: tuple[str, ...] = tuple(PHASES)
    num_requests: int = 4  # at a time
    is_long: bool = False  # a try takes LONG_PAUSE_S at least


WORKERS = ("prefill", "decode")
ON_ROUTERS: Mapping[str, Inject] = {  # under clients that resume
    "killed": kill,
    "stopped": stop,
    "restarted": terminate,
    "killed draining": kill_draining,
    "cut off": cut,
    "unheard": swallow,
    "late": delay,
}
FAULTS = (
    *(Fault("killed", role, kill) for role in WORKERS),
    *(Fault("stopped", role, stop) for role in WORKERS),
    *(Fault("restarted", role, terminate) for role in WORKERS),
    *(Fault("killed draining", role, kill_draining) for role in WORKERS),
    *(Fault("killed, disks full", role, kill_with_full_disks) for role in WORKERS),
    *(Fault("cut off", role, cut) for role in WORKERS),
    *(Fault("unheard", role, swallow) for role in WORKERS),
    *(Fault("late", role, delay) for role in WORKERS),
    Fault("killed", "router", kill),
    Fault("restarted", "router", terminate),
    *(Fault(f"{name}, streams resumed", "router", inject, resuming) for name, inject in ON_ROUTERS.items()),
    Fault("frozen, streams resumed", "router", freeze, resuming, ("prefilling", "decoding"), is_long=True),
    Fault("killed with a decode worker, streams resumed", "router", kill_with_another, resuming),
    Fault("killed, streams resumed", "decode", kill, resuming),
    Fault("killed with a prefill worker", "decode", kill_with_another),
    Fault("cancelled", "client", cancel),
    Fault("cancelled alone", "client", cancel, num_requests=1),
    Fault("killed", "redis", kill, bad_links),
    Fault("stopped", "redis", stop, bad_links),
    *(Fault("killed, with TCP and Redis", role, kill, bad_links) for role in WORKERS),
    *(Fault("frozen", role, freeze, bad_links, ("prefilling", "decoding"), is_long=True) for role in WORKERS),
    Fault("KV cut off", "prefill", cut, bad_links, BEFORE_DECODING),
    Fault("KV unheard", "prefill", swallow, bad_links, BEFORE_DECODING),
    Fault("KV late", "prefill", delay, bad_links, BEFORE_DECODING),
    Fault("KV garbled", "prefill", garble, bad_links, BEFORE_DECODING),
    *(Fault("unplugged", role, unplug, many_machines) for role in WORKERS),
    *(Fault("lost", role, lose, many_machines, ("prefilling", "decoding"), is_long=True) for role in WORKERS),
)
PLACES = tuple(dict.fromkeys(fault.place for fault in FAULTS))
