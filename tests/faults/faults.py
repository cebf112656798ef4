"""The faults that are injected into a cluster."""

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
LONG_PAUSE_S = 20.0  # longer than leases and than the keepalive timeout


@dataclass(frozen=True, slots=True)
class Scene:
    """The state of a try when a fault is injected."""

    cluster: Cluster
    exchanges: Sequence[Exchange]
    tasks: "Sequence[asyncio.Task[Answer]]"  # one per exchange
    victim: Node | None  # a process of the fault's role; None if the fault hits a client
    cancelled: list[Exchange] = field(default_factory=list)
    others: list[Node] = field(default_factory=list)  # further processes that were hit

    @property
    def victims(self) -> Sequence[Node]:
        """The processes that may have ended."""
        return (*(() if self.victim is None else (self.victim,)), *self.others)


Inject = Callable[[Scene, random.Random], Awaitable[None]]


async def kill(scene: Scene, rng: random.Random) -> None:
    """Kill the process; it is restarted after the try."""
    victim = _process(scene)
    victim.signal(signal.SIGKILL)
    await victim.wait_end()


async def stop(scene: Scene, rng: random.Random) -> None:
    """Stop the process for a while, with its connections open."""
    await _stop(scene, rng.uniform(0.1, LONGEST_PAUSE_S))


async def freeze(scene: Scene, rng: random.Random) -> None:
    """Stop the process for longer than any timeout."""
    await _stop(scene, LONG_PAUSE_S)


async def _stop(scene: Scene, pause_s: float) -> None:
    victim = _process(scene)
    victim.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(pause_s)
    finally:
        victim.signal(signal.SIGCONT)


async def terminate(scene: Scene, rng: random.Random) -> None:
    """Terminate the process, as in a rolling restart, with a drain timeout too short for its requests."""
    victim = _process(scene)
    victim.signal(signal.SIGTERM)
    status = await victim.wait_end()
    assert status == 0, f"{victim.name} ended with status {status}"


async def kill_draining(scene: Scene, rng: random.Random) -> None:
    """Kill the process while it drains."""
    victim = _process(scene)
    victim.signal(signal.SIGTERM)
    await asyncio.sleep(rng.uniform(0, 0.6))
    victim.signal(signal.SIGKILL)
    await victim.wait_end()


async def kill_with_another(scene: Scene, rng: random.Random) -> None:
    """Kill the process and one of another role at once: one of each role is left."""
    role = "prefill" if _process(scene).role == "decode" else "decode"
    busy = {exchange.decode_worker for exchange in scene.exchanges}
    nodes = scene.cluster.of_role(role)
    scene.others.append(rng.choice([node for node in nodes if node.name in busy] or nodes))
    for node in scene.victims:
        node.signal(signal.SIGKILL)
    for node in scene.victims:
        await node.wait_end()


async def kill_with_full_disks(scene: Scene, rng: random.Random) -> None:
    """Kill the process while no process can write to any file, including its log."""
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
    """Break the connections to the worker."""
    await scene.cluster.proxies[_process(scene).name].cut()


async def swallow(scene: Scene, rng: random.Random) -> None:
    """Hold back all data to and from the worker for a while."""
    proxy = scene.cluster.proxies[_process(scene).name]
    proxy.swallow()
    try:
        await asyncio.sleep(rng.uniform(0.1, LONGEST_PAUSE_S))
    finally:
        proxy.flow()


async def delay(scene: Scene, rng: random.Random) -> None:
    """Delay all data to and from the worker for a while."""
    proxy = scene.cluster.proxies[_process(scene).name]
    proxy.delay_s = rng.uniform(0.01, 0.1)
    try:
        await asyncio.sleep(rng.uniform(0.1, LONGEST_PAUSE_S))
    finally:
        proxy.delay_s = 0.0


async def garble(scene: Scene, rng: random.Random) -> None:
    """Corrupt data from the worker for a while, at least until some corrupt bytes were forwarded."""
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
    """Disconnect the worker's machine from the network for a while."""
    await _unplug(scene, rng.uniform(0.1, LONGEST_PAUSE_S))


async def lose(scene: Scene, rng: random.Random) -> None:
    """Disconnect the worker's machine from the network for longer than any timeout."""
    await _unplug(scene, LONG_PAUSE_S)


async def _unplug(scene: Scene, pause_s: float) -> None:
    machine = scene.cluster.machines[_process(scene).name]
    machine.unplug()
    try:
        await asyncio.sleep(pause_s)
    finally:
        machine.plug()


async def cancel(scene: Scene, rng: random.Random) -> None:
    """Cancel a request, if there is one without a complete response."""
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
    """A fault of a process of a role, or of its network."""

    name: str
    role: str
    inject: Inject
    place: Place = one_machine
    phases: tuple[str, ...] = tuple(PHASES)
    num_requests: int = 4  # concurrent
    is_long: bool = False  # a try takes at least LONG_PAUSE_S


WORKERS = ("prefill", "decode")
ON_ROUTERS: Mapping[str, Inject] = {  # injected under clients that resume
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
