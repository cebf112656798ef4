"""Client of the cluster's API server for the two lists that a budget needs: nodes and pods.

Lists are read in pages. `resourceVersion=0` lets the API server respond from its cache instead of etcd; the result may
be seconds old.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import orjson
from pydantic import ValidationError

from baton.deployment.kubernetes.api_objects import Node, Page, Pod
from baton.deployment.kubernetes.settings import first_fault

PAGE_SIZE = 500
CHUNK_BYTES = 1 << 18
NUM_TRIES = 3  # for a list whose continuation token has expired
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
FIRST_PAGE = {"resource_version": "0", "resource_version_match": "NotOlderThan"}

Item = TypeVar("Item", Node, Pod)
Taken = TypeVar("Taken")


class ApiServerError(Exception):
    """The API server cannot be reached, or its response is unusable."""


class ApiServer:
    """Owner of the connections to the API server. Every list raises ApiServerError on failure or timeout.

    Responses are parsed here: the client's own models reject fields that a newer server adds, and take seconds for
    thousands of pods.
    """

    def __init__(self, client: Any, timeout_s: float) -> None:
        """Use a `kubernetes.client.ApiClient`. `timeout_s` limits each list."""
        from kubernetes.client import CoreV1Api  # slow to import, and needed only in Kubernetes

        self._client = client
        self._core = CoreV1Api(client)
        self._timeout_s = timeout_s

    @classmethod
    def of_pod(cls, environ: Mapping[str, str], service_account: Path, timeout_s: float) -> "ApiServer":
        """Return the API server of the pod's own cluster. Raises ApiServerError for an incomplete service account."""
        from kubernetes.client import ApiClient, Configuration
        from kubernetes.config import ConfigException
        from kubernetes.config.incluster_config import InClusterConfigLoader

        configuration = Configuration()
        configuration.retries = False  # the caller keeps the last result and retries later
        token, authority = str(service_account / "token"), str(service_account / "ca.crt")
        loader = InClusterConfigLoader(token, authority, environ=environ)  # type: ignore[no-untyped-call]  # its own lack
        try:
            loader.load_and_set(configuration)  # type: ignore[no-untyped-call]  # its own lack
        except (ConfigException, OSError) as error:
            raise ApiServerError(f"{service_account}: {error}") from error
        return cls(ApiClient(configuration), timeout_s)

    def nodes(self, take: Callable[[Node], Taken]) -> list[Taken]:
        """Return `take(node)` for every node."""
        return self._list(self._core.list_node, Page[Node], take, {})

    def pods(self, take: Callable[[Pod], Taken], namespace: str | None) -> list[Taken]:
        """Return `take(pod)` for every pod that has not ended, in one namespace or (None) in all."""
        options = {"field_selector": NOT_ENDED}
        if namespace is None:
            return self._list(self._core.list_pod_for_all_namespaces, Page[Pod], take, options)
        return self._list(self._core.list_namespaced_pod, Page[Pod], take, {**options, "namespace": namespace})

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _list(
        self,
        listing: Callable[..., Any],
        page: type[Page[Item]],
        take: Callable[[Item], Taken],
        options: dict[str, str],
    ) -> list[Taken]:
        from kubernetes.client import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        deadline_s = time.monotonic() + self._timeout_s
        try:
            for _ in range(NUM_TRIES):
                try:
                    return [take(item) for item in self._items(listing, page, options, deadline_s)]
                except ApiException as error:
                    if error.status != 410:
                        raise
            raise ApiServerError(f"the list expired between its pages {NUM_TRIES} times")
        except ApiException as error:
            raise ApiServerError(_status_text(error.status, error.reason, error.body)) from error
        except ValidationError as error:
            raise ApiServerError(f"invalid response: {first_fault(error)}") from error
        except ValueError as error:
            raise ApiServerError(f"invalid response: {error}") from error
        except (HTTPError, ConfigException, OSError) as error:
            raise ApiServerError(f"{type(error).__name__}: {error}") from error

    def _items(
        self, listing: Callable[..., Any], page: type[Page[Item]], options: dict[str, str], deadline_s: float
    ) -> Iterator[Item]:
        """Yield all items, page by page. Later pages belong to the same snapshot and must not give a version."""
        position = FIRST_PAGE
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the list took longer than {self._timeout_s:g} s")
            response = listing(limit=PAGE_SIZE, _preload_content=False, _request_timeout=left_s, **options, **position)
            this = page.model_validate_json(_body(response, deadline_s))
            yield from this.items or ()
            if not this.metadata.continuation:
                return
            position = {"_continue": this.metadata.continuation}


def _body(response: Any, deadline_s: float) -> bytes:
    """Read the whole body before the deadline. The client's own timeout is only for a single socket read."""
    chunks: list[bytes] = []
    try:
        while chunk := response.read1(CHUNK_BYTES):
            chunks.append(chunk)
            if time.monotonic() > deadline_s:
                raise TimeoutError("the response took too long")
    finally:
        response.close()  # a response that was read to its end has already returned its connection
    return b"".join(chunks)


def _status_text(status: int | None, reason: str | None, body: str | bytes | None) -> str:
    """Return the HTTP status, with the API server's message if there is one."""
    try:
        message = orjson.loads(body or b"")["message"]
    except (ValueError, KeyError, TypeError):
        message = ""
    text = f"{status or ''} {reason or ''}".strip()
    return f"{text}: {message}" if message else text
