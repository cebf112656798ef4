"""A client for tests: objects as they are, by kind and name."""

import ssl
from collections.abc import Callable
from types import TracebackType
from typing import Any

import httpx

from tests.helm.api_server.api import APPLY, MERGE_PATCH
from tests.helm.api_server.errors import Json
from tests.helm.api_server.resource_types import ResourceType
from tests.helm.api_server.server import ApiServer


class Refused(Exception):
    """The server's answer was not success."""

    def __init__(self, answer: httpx.Response) -> None:
        said = answer.json()
        super().__init__(said["message"])
        self.code, self.reason = answer.status_code, said["reason"]


def refusal(ask: Callable[[], object]) -> Refused:
    """What the server said. Raises AssertionError if it did what was asked."""
    try:
        ask()
    except Refused as refused:
        return refused
    raise AssertionError("it was not refused")


class Client:
    """Owns connections to one server; every method raises Refused."""

    def __init__(self, server: ApiServer, token: str | None = None) -> None:
        self._server = server
        headers = {"Authorization": f"Bearer {token or server.admin_token}", "User-Agent": "tests/1"}
        context = ssl.create_default_context(cafile=server.authority)
        self._http = httpx.Client(base_url=server.url, headers=headers, verify=context, trust_env=False)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._http.close()

    def get(self, kind: str, name: str, namespace: str = "default", below: str = "") -> Json:
        """One object, or what hangs below it."""
        return self.ask("GET", self._path(kind, namespace, name, below))

    def list(self, kind: str, namespace: str = "default", **query: str) -> list[Json]:
        """All of a kind, as far as the query selects them."""
        items: list[Json] = self.ask("GET", self._path(kind, namespace), query)["items"]
        return items

    def create(self, body: Json, namespace: str = "default") -> Json:
        """The object as it is then."""
        return self.ask("POST", self._path(body["kind"], namespace), body=body)

    def replace(self, body: Json, below: str = "") -> Json:
        """The object as it is then."""
        metadata = body["metadata"]
        namespace = metadata.get("namespace", "")
        return self.ask("PUT", self._path(body["kind"], namespace, metadata["name"], below), body=body)

    def patch(
        self,
        kind: str,
        name: str,
        patch: Any,
        content_type: str = MERGE_PATCH,
        *,
        below: str = "",
        namespace: str = "default",
    ) -> Json:
        """The object as it is then."""
        path = self._path(kind, namespace, name, below)
        return self.ask("PATCH", path, body=patch, content_type=content_type)

    def apply(self, body: Json, manager: str, *, force: bool = False, namespace: str = "default") -> Json:
        """Server-side; the object as it is then."""
        path = self._path(body["kind"], namespace, body["metadata"]["name"])
        query = {"fieldManager": manager, "force": str(force).lower()}
        return self.ask("PATCH", path, query, body, APPLY)

    def delete(self, kind: str, name: str, namespace: str = "default", propagation: str = "Background") -> Json:
        """What it was."""
        query = {"propagationPolicy": propagation}
        return self.ask("DELETE", self._path(kind, namespace, name), query)

    def ask(
        self,
        method: str,
        path: str,
        query: dict[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> Json:
        """Any request."""
        headers = {"Content-Type": content_type}
        answer = self._http.request(method, path, params=query, json=body, headers=headers)
        if answer.is_error:
            raise Refused(answer)
        said: Json = answer.json()
        return said

    def _path(self, kind: str, namespace: str, name: str = "", below: str = "") -> str:
        of: ResourceType = self._server.http.api.types.of_kind(kind)
        root = f"/apis/{of.group}/{of.version}" if of.group else f"/api/{of.version}"
        within = f"namespaces/{namespace}" if of.namespaced and namespace else ""
        return "/".join(each for each in (root, within, of.plural, name, below) if each)
