"""A real Ray whose autoscaler starts and ends fake nodes: raylets on this machine with made-up resources."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import yaml

from baton.deployment.local.ports import free_ports
from tests.integration.on_ray.ray_cluster import HOST, RayCluster, command_line, left_of

HEAD_TYPE = "ray.head.default"  # the provider's name
HEAD_ID = "f" * 51 + "00000"  # nodes that it starts are numbered from ...00001
PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
IDLE_S = 3.0  # before an idle node is ended
END_TIMEOUT_S = 30.0


class FakeNodes:
    """A Ray and the nodes that its autoscaler currently runs."""

    def __init__(self, directory: Path, types: Collection[str], most: int) -> None:
        """Each node has the label `pool` with its type, one CPU and one GPU; at most `most` nodes per type."""
        config = directory / "autoscaling.yaml"
        [metrics_port] = free_ports(HOST, 1)
        self.ray = RayCluster(
            directory,
            env={
                "RAY_FAKE_CLUSTER": "1",
                "RAY_enable_autoscaler_v2": "1",
                "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
                "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
                "AUTOSCALER_UPDATE_INTERVAL_S": "1",
                "AUTOSCALER_METRIC_PORT": str(metrics_port),
                "CUDA_VISIBLE_DEVICES": "0",  # Ray refuses a node with more GPUs than this variable lists
            },
            flags=(f"--autoscaling-config={config}",),
        )
        config.write_text(yaml.safe_dump(autoscaling_config(self.ray.address, types, most)))

    def types(self) -> Counter[str]:
        """Return the number of nodes per type, without the head."""
        seen: Counter[str] = Counter()
        for process in self.ray.processes():
            seen[node_type(process)] += 1
        del seen[HEAD_TYPE], seen[""]
        return seen

    def type_of(self, worker_id: str) -> str:
        """Return the type of the node of one of our workers."""
        [found] = filter(None, map(node_type, self.ray.worker(worker_id).parents()))
        return found

    async def end(self) -> None:
        """End the autoscaler first, as it would restart nodes; then the nodes, which would wait a minute for a head."""
        for monitor in [each for each in self.ray.processes() if is_monitor(each)]:
            nodes = monitor.children(recursive=True)
            monitor.terminate()
            for each in nodes:
                with suppress(psutil.NoSuchProcess):
                    each.kill()
            await asyncio.to_thread(left_of, [monitor, *nodes], END_TIMEOUT_S)
        await self.ray.end()


def autoscaling_config(address: str, types: Collection[str], most: int) -> dict[str, Any]:
    """Return the config of Ray's autoscaler."""
    nodes = {
        name: {
            "resources": {"CPU": 1, "GPU": 1, "object_store_memory": 100_000_000},
            "labels": {"pool": name},
            "min_workers": 0,
            "max_workers": most,
            "node_config": {},
        }
        for name in types
    }
    return {
        "cluster_name": "fake",
        "max_workers": most * len(nodes),
        "idle_timeout_minutes": IDLE_S / 60,
        "provider": {
            "type": "external",
            "module": PROVIDER,
            "gcs_address": address,
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
            "disable_node_updaters": True,
        },
        "available_node_types": {HEAD_TYPE: {"resources": {}, "max_workers": 0, "node_config": {}}, **nodes},
        "head_node_type": HEAD_TYPE,
        # Required, but unused by this provider.
        **{f"{prefix}setup_commands": [] for prefix in ("", "head_", "worker_")},
        "cluster_synced_files": [],
        "file_mounts": {},
    }


def node_type(process: psutil.Process) -> str:
    """Return the node type of a raylet; empty for another process."""
    with suppress(psutil.Error):
        if process.name() == "raylet":
            return process.environ().get("RAY_NODE_TYPE_NAME", HEAD_TYPE)
    return ""


def is_monitor(process: psutil.Process) -> bool:
    """Return whether a process is the autoscaler."""
    return any(part.endswith("autoscaler/v2/monitor.py") for part in command_line(process))


@asynccontextmanager
async def fake_nodes(types: Collection[str], most: int) -> AsyncIterator[FakeNodes]:
    """Run FakeNodes; on exit none of its processes may be left."""
    with TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as name:  # Ray needs short socket paths
        nodes = FakeNodes(Path(name), types, most)
        try:
            await nodes.ray.head.start()
            yield nodes
        finally:
            await nodes.end()
