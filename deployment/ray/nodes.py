"""Other nodes of a worker whose ranks lie on several: an actor on each, in its replica's placement group.

The actors end with their replica, which owns them, and their processes with the actors, by the same lifeline as the
replica's own process. The worker's first process ends if it loses a node, and the replica is replaced as a whole.
"""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util import get_node_ip_address
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from baton.deployment.local.machine import this_machine
from baton.deployment.ray.child import ReplicaChild
from baton.deployment.ray.process import Place, node_process, share_of
from baton.deployment.ray.settings import RaySettings
from baton.process.child import ChildProcess
from baton.settings.names import Role


class WorkerNode:
    """Ray actor that owns a worker's process on one of its other nodes."""

    async def run(self, settings: RaySettings, role: Role, worker_id: str, number: int, leader: str) -> str:
        """Run the process until it ends, and return why. Raises OptionError or EngineError."""
        address = get_node_ip_address()  # type: ignore[no-untyped-call]  # Ray has no types for it
        place = Place(address, share_of(this_machine(), settings.deployments[role].replicas))
        spec = node_process(settings, role, f"{worker_id}-node-{number}", place, number, leader)
        child = ReplicaChild(spec, await ChildProcess.start(spec))
        return await child.wait()


class OtherNodes:
    """Nodes of a replica's worker besides its own."""

    def __init__(self, settings: RaySettings, role: Role, worker_id: str) -> None:
        """Start nothing yet."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()  # done with the reason
        self._settings = settings
        self._role: Role = role
        self._worker_id = worker_id
        self._actors: list[Any] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, leader: str) -> None:
        """Start the processes of all nodes, which connect to the worker's first process at `leader`.

        If that fails, the nodes count as lost.
        """
        try:
            self._start(leader)
        except Exception as error:
            self._lose(f"the other nodes cannot start: {type(error).__name__}: {error}")

    def _start(self, leader: str) -> None:
        group, options = get_current_placement_group(), actor_options(self._settings, self._role)
        assert group is not None, "Serve places replicas on several nodes by a placement group"
        for number in range(1, self._settings.num_nodes(self._role)):
            bundle = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number)
            actor: Any = ray.remote(WorkerNode).options(**options, scheduling_strategy=bundle).remote()
            self._actors.append(actor)
            self._tasks.append(asyncio.create_task(self._run(actor, number, leader)))

    def end(self) -> None:
        """Kill what is left of them."""
        for task in self._tasks:
            task.cancel()
        for actor in self._actors:
            ray.kill(actor)

    async def _run(self, actor: Any, number: int, leader: str) -> None:
        try:
            reason = await actor.run.remote(self._settings, self._role, self._worker_id, number, leader)
        except RayError as error:
            reason = str(error)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        self._lose(f"node {number}: {reason}")

    def _lose(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)


def actor_options(settings: RaySettings, name: str) -> dict[str, Any]:
    """Return Ray's resources for a deployment's actor, on each node of a replica."""
    options = settings.deployments[name]
    actor: dict[str, Any] = {"num_cpus": options.replicas.num_cpus, "num_gpus": settings.num_gpus(name)}
    if options.replicas.memory_bytes is not None:
        actor["memory"] = options.replicas.memory_bytes
    if options.resources:
        actor["resources"] = dict(options.resources)
    return actor


def placement_group(settings: RaySettings, role: Role) -> dict[str, Any]:
    """Return Serve's options for replicas with a bundle on each of several nodes; none for replicas on one."""
    if settings.num_nodes(role) == 1:
        return {}
    actor = actor_options(settings, role)
    resources = {"CPU": actor["num_cpus"], "GPU": actor["num_gpus"], "memory": actor.get("memory", 0)}
    bundle = {name: amount for name, amount in {**resources, **actor.get("resources", {})}.items() if amount}
    labels = settings.deployments[role].label_selector
    group: dict[str, Any] = {
        "placement_group_bundles": [bundle] * settings.num_nodes(role),
        "placement_group_strategy": "STRICT_SPREAD",
    }
    return {**group, "placement_group_bundle_label_selector": [dict(labels)]} if labels else group
