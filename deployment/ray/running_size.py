"""Size at which a new cluster's pools begin: that of the pools that serve now.

In an upgrade, KubeRay starts a second cluster, switches to it once its application runs, and soon ends the first one. A
new cluster that began at its smallest size would then have to take the whole load.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from baton.deployment.ray.observed_pools import merged_workers
from baton.deployment.ray.pools_observer import own_reports
from baton.membership.registry.base import RegistryLost
from baton.membership.registry.factory import open_registry
from baton.membership.registry.router_report import decode_report
from baton.settings.names import Role

logger = logging.getLogger("ray.serve")

TIMEOUT_S = 5.0


def running_sizes(registry: str, model: str, cluster: str) -> Mapping[Role, int]:
    """Return the number of workers of each role that accept requests for a model in other clusters than this one.

    Blocks for at most some seconds. If the registry does not respond, no worker counts.
    """
    with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
        try:
            texts = thread.submit(asyncio.run, _read(registry)).result()
            reports = own_reports([decode_report(text) for text in texts], model)
        except (RegistryLost, TimeoutError, ValueError) as error:
            logger.warning("cannot read the size of the running pools, beginning at the smallest: %s", error)
            return {}
    others = [each for each in merged_workers(reports) if not each.application.startswith(f"{cluster}-")]
    return Counter(each.role for each in others if not each.draining)


async def _read(url: str) -> tuple[str, ...]:
    registry = open_registry(url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            return await registry.reports.read()
    finally:
        await registry.close()
