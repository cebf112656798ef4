"""A cluster's state as its router reports it at `/workers`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from baton.deployment.local.cluster_config import ClusterSettings
from baton.deployment.local.events import ServingWorker
from baton.router.auth.api_key import hidden, new_key
from baton.rpc.router_client import ServerError, json_body
from baton.settings.values import Value

END_TIMEOUT_S = 0.5  # for the last request to a router that is about to shut down


@dataclass(frozen=True, slots=True)
class RouterView:
    """The router's state and its ready workers."""

    is_ready: bool
    num_requests: int | None  # running and waiting; None: unknown, because the router has several processes
    addresses: Mapping[str, str]  # by worker id
    workers: tuple[ServingWorker, ...]


def router_client(key: str | None) -> httpx.AsyncClient:
    """Return a client for a router on this machine, which sends the API key.

    The router's certificate is not checked, because it is issued for the public name.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(headers=headers, trust_env=False, verify=False)


async def view_router(client: httpx.AsyncClient, url: str) -> RouterView | None:
    """Return the router's current view; None if it does not respond."""
    try:
        body: Any = json_body((await client.get(f"{url}/workers")).raise_for_status())
        router, workers = body["router"], [each for each in body["workers"] if each["state"] == "ready"]
        return RouterView(
            is_ready=bool(router["ready"]),
            num_requests=int(router["inflight"]) if router.get("process") is None else None,
            addresses={worker["worker_id"]: worker["address"] for worker in workers},
            workers=tuple(map(_worker, workers)),
        )
    except (httpx.HTTPError, ServerError, ValueError, KeyError, TypeError):
        return None  # it does not listen yet, or another program does


async def num_open_requests(client: httpx.AsyncClient, url: str) -> int | None:
    """Return the number of unfinished requests; 0 if the router does not respond, None if it has several processes."""
    client.timeout = httpx.Timeout(END_TIMEOUT_S)
    view = await view_router(client, url)
    return 0 if view is None else view.num_requests


def _worker(worker: Mapping[str, Any]) -> ServingWorker:
    return ServingWorker(
        worker_id=worker["worker_id"],
        role=worker["role"],
        kv_tokens=int(worker["load"]["num_blocks"]) * int(worker["block_size"]),
        max_model_len=int(worker["max_model_len"]),
        transports=tuple(worker["transports"]),
    )


def with_watch_key(settings: ClusterSettings) -> tuple[ClusterSettings, str | None]:
    """Return settings whose router accepts one more API key, and the key; None if the router requires none.

    Only this process has the key; the router gets its digest.
    """
    given = settings.router.get("api_key")
    keys = given if isinstance(given, tuple) else ()
    others = settings.router.get("api_keys_file"), settings.router.get("admin_api_key")
    if given == () or (given is None and others == (None, None)):
        return settings, None  # the router rejects an empty key itself
    key = new_key()
    router: Mapping[str, Value] = {**settings.router, "api_key": (*keys, hidden(key))}
    return replace(settings, router=router), key
