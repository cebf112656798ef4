"""Run a cluster of small processes: `cluster_script.py LOG_DIR PORT MODE...` (the worker modes); prints its events."""

import asyncio
import sys
from pathlib import Path

from baton.deployment.local.cluster import LocalCluster
from baton.deployment.local.events import Event
from baton.deployment.local.supervisor import RestartPolicy
from tests.unit.deployment.recorder import child_spec


def show(event: Event) -> None:
    print(event, flush=True)


async def main() -> None:
    log_dir, port = Path(sys.argv[1]), sys.argv[2]
    router = child_spec(sys.executable, log_dir, "serve", "router", "--port", port)
    workers = [child_spec(sys.executable, log_dir, mode, f"worker-{index}") for index, mode in enumerate(sys.argv[3:])]
    cluster = LocalCluster([router, *workers], f"http://127.0.0.1:{port}", show, 1.0, RestartPolicy())
    await cluster.run(asyncio.Event(), asyncio.Event())


asyncio.run(main())
