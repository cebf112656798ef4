"""Checks of the registry in Redis: access, version, latency and clock."""

import secrets
import time
from typing import Any, cast

from redis.exceptions import NoPermissionError

from baton.doctor.clock import ClockReading, best, check_clock
from baton.doctor.finding import Finding, failure, ok, warning
from baton.membership.registry.redis_client import REDIS_ERRORS, RedisConnections
from baton.settings.registry_url import RegistryUrl

MIN_VERSION = 5
KEY_TTL_MS = 1000  # of the test key
NUM_ROUND_TRIPS = 5
MAX_ROUND_TRIP_S = 0.1
REACH = "check that Redis is running and that this machine can reach it: redis-cli -u URL ping"


async def check_registry(url: RegistryUrl) -> list[Finding]:
    """Write a key as a worker does, and read the clock. Persistence is not checked: workers register again."""
    connections = RedisConnections(url)
    client = cast(Any, connections.client)  # redis-py types its commands as result or awaitable
    try:
        key = f"baton:{{{url.namespace}}}:doctor:{secrets.token_hex(8)}"
        await client.set(key, "", px=KEY_TTL_MS)
        await client.delete(key)
        return [*await _check_server(client, url), *await _check_clock(client)]
    except REDIS_ERRORS as error:
        return [failure("registry", f"{url}: {type(error).__name__}: {error}", REACH)]
    finally:
        await connections.close()


async def _check_server(client: Any, url: RegistryUrl) -> list[Finding]:
    try:
        info = await client.info("server")
    except NoPermissionError:
        return [ok("registry", f"{url} accepts keys; this account may not read its version")]
    # A cluster client returns one dictionary per node. A single server's result has dictionaries too: its listeners.
    servers = [info] if "redis_version" in info else [each for each in info.values() if isinstance(each, dict)]
    versions = sorted({str(server.get("redis_version", "0")) for server in servers})
    old = [each for each in versions if int(each.split(".")[0]) < MIN_VERSION]
    if old:
        return [failure("registry-version", f"{url} is Redis {', '.join(old)}", f"use Redis {MIN_VERSION} or later")]
    return [ok("registry", f"{url} accepts keys; Redis {', '.join(versions)}")]


async def _check_clock(client: Any) -> list[Finding]:
    readings = []
    for _ in range(NUM_ROUND_TRIPS):
        sent_s = time.time()
        try:
            seconds, microseconds = await client.time()
        except (NoPermissionError, TypeError, ValueError):  # no permission, or a cluster's result per node
            return []
        readings.append(ClockReading(sent_s, seconds + microseconds / 1e6, time.time()))
    fastest = best(readings)
    findings = [check_clock(fastest, "registry-clock")]
    if fastest.round_trip_s > MAX_ROUND_TRIP_S:
        found = f"the fastest of {NUM_ROUND_TRIPS} round trips took {fastest.round_trip_s * 1e3:.0f} ms"
        findings.append(
            warning("registry-latency", found, "move Redis closer to the workers, or to a less busy machine")
        )
    return findings
