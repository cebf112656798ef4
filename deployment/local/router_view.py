"""A cluster's state as its router reports it at `/workers`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx

from baton.deployment.local.cluster_config import ClusterSettings
from baton.deployment.local.events import ServingWorker
from baton.router.auth.api_key import hidden, new_key
from baton.settings.values import Value

END_TIMEOUT_S = 0.5  # for the last look at a router that is about to end


@dataclass(frozen=True, slots=True)
class RouterView:
    """The router, and the workers to which it would send requests."""

    is_ready: bool
    num_requests: int | None  # running and waiting; None: other processes of the router have more
    addresses: Mapping[str, str]  # by worker's id
    workers: tuple[ServingWorker, ...]


def router_client(key: str | None) -> httpx.AsyncClient:
    """Return a client for a router of our own at an address of this machine, which shows it the key.

    The router's certificate is not checked: it is for the name that clients know.
    """
    headers = {} if key is None else {"authorization": f"Bearer {key}"}
    return httpx.AsyncClient(headers=headers, trust_env=False, verify=False)


async def view_router(client: httpx.AsyncClient, url: str) -> RouterView | None:
    """The router's view now; None if it does not answer."""
    try:
        body = (await client.get(f"{url}/workers")).raise_for_status().json()
        router, workers = body["router"], [each for each in body["workers"] if each["state"] == "ready"]
        return RouterView(
            is_ready=bool(router["ready"]),
            num_requests=int(router["inflight"]) if router.get("process") is None else None,
            addresses={worker["worker_id"]: worker["address"] for worker in workers},
            workers=tuple(map(_worker, workers)),
        )
    except (httpx.HTTPError, ValueError, KeyError, TypeError):  # it does not listen yet, or something else does
        return None


async def num_open_requests(client: httpx.AsyncClient, url: str) -> int | None:
    """Requests that the router has not finished, 0 if it does not answer soon; None: other processes have more."""
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
    """Return settings whose router takes one more key, and that key; None if the router asks for none.

    The key is held in this process alone; the router gets its digest.
    """
    given = settings.router.get("api_key")
    keys = given if isinstance(given, tuple) else ()
    if given == () or (given is None and settings.router.get("api_keys_file") is None):
        return settings, None  # an empty key is refused by the router
    key = new_key()
    router: Mapping[str, Value] = {**settings.router, "api_key": (*keys, hidden(key))}
    return replace(settings, router=router), key
