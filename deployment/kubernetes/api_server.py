"""The cluster's API server, as far as a budget asks it.

It is asked for two lists, of nodes and of pods, in pages; `resourceVersion=0` lets it answer from its memory instead of
asking etcd, which may then be seconds behind.
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
NUM_TRIES = 3  # of a list whose pages have become too old to go on with
NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
FIRST_PAGE = {"resource_version": "0", "resource_version_match": "NotOlderThan"}

Item = TypeVar("Item", Node, Pod)
Taken = TypeVar("Taken")


class ApiServerError(Exception):
    """The API server gave no answer that can be used."""


class ApiServer:
    """Owns the connections to the API server; every list raises ApiServerError if it is not had in time.

    The client's own models take no field that a newer server adds, and seconds for thousands of pods; so what it
    fetches is read here.
    """

    def __init__(self, client: Any, timeout_s: float) -> None:
        """`client` is a `kubernetes.client.ApiClient`; a list may take `timeout_s`."""
        from kubernetes.client import CoreV1Api  # slow, and nobody outside Kubernetes needs it

        self._client = client
        self._core = CoreV1Api(client)
        self._timeout_s = timeout_s

    @classmethod
    def of_pod(cls, environ: Mapping[str, str], service_account: Path, timeout_s: float) -> "ApiServer":
        """That of the cluster that we run in. Raises ApiServerError if the service account is not complete."""
        from kubernetes.client import ApiClient, Configuration
        from kubernetes.config import ConfigException
        from kubernetes.config.incluster_config import InClusterConfigLoader

        configuration = Configuration()
        configuration.retries = False  # whoever asks has the last answer, and asks again after a while
        token, authority = str(service_account / "token"), str(service_account / "ca.crt")
        loader = InClusterConfigLoader(token, authority, environ=environ)  # type: ignore[no-untyped-call]  # its own lack
        try:
            loader.load_and_set(configuration)  # type: ignore[no-untyped-call]  # its own lack
        except (ConfigException, OSError) as error:
            raise ApiServerError(f"{service_account}: {error}") from error
        return cls(ApiClient(configuration), timeout_s)

    def nodes(self, take: Callable[[Node], Taken]) -> list[Taken]:
        """What `take` makes of every node."""
        return self._list(self._core.list_node, Page[Node], take, {})

    def pods(self, take: Callable[[Pod], Taken], namespace: str | None) -> list[Taken]:
        """What `take` makes of every pod that has not ended, of one namespace or of all."""
        options = {"field_selector": NOT_ENDED}
        if namespace is None:
            return self._list(self._core.list_pod_for_all_namespaces, Page[Pod], take, options)
        return self._list(self._core.list_namespaced_pod, Page[Pod], take, {**options, "namespace": namespace})

    def close(self) -> None:
        """Ends the connections."""
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
            raise ApiServerError(f"the list changed too fast for its pages, {NUM_TRIES} times")
        except ApiException as error:
            raise ApiServerError(_status_words(error.status, error.reason, error.body)) from error
        except ValidationError as error:
            raise ApiServerError(f"the answer makes no sense: {first_fault(error)}") from error
        except ValueError as error:
            raise ApiServerError(f"the answer makes no sense: {error}") from error
        except (HTTPError, ConfigException, OSError) as error:
            raise ApiServerError(f"{type(error).__name__}: {error}") from error

    def _items(
        self, listing: Callable[..., Any], page: type[Page[Item]], options: dict[str, str], deadline_s: float
    ) -> Iterator[Item]:
        """All items, page by page; a page that follows another is of the same moment and says no version of its own."""
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
    """All of it, in time: the client's own time-out is that of a single read from the socket."""
    chunks: list[bytes] = []
    try:
        while chunk := response.read1(CHUNK_BYTES):
            chunks.append(chunk)
            if time.monotonic() > deadline_s:
                raise TimeoutError("the answer came too slowly")
    finally:
        response.close()  # one that was read to its end has given its connection back already
    return b"".join(chunks)


def _status_words(status: int | None, reason: str | None, body: str | bytes | None) -> str:
    """The API server's own words where there are any."""
    try:
        said = orjson.loads(body or b"")["message"]
    except (ValueError, KeyError, TypeError):
        said = ""
    words = f"{status or ''} {reason or ''}".strip()
    return f"{words}: {said}" if said else words
