"""A small server that lists nodes and pods like a Kubernetes API server: TLS, tokens, permissions, pages, versions."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme

from tests.unit.deployment.kubernetes_objects import NAMESPACE, Json

TOKEN = "a-token"
USER = ("baton", NAMESPACE)  # the service account of the token


@dataclass(frozen=True)
class Call:
    """One request to the API server."""

    resource: str
    namespace: str | None
    query: Mapping[str, str]


@dataclass(frozen=True)
class Status:
    """A response that replaces the correct one."""

    code: int
    reason: str
    message: str = ""
    body: bytes | None = None  # instead of a `Status` object


HANG, DRIP, CUT = "hang", "drip", "cut"  # no response; byte by byte; half of it
CHUNKED_ABOVE_BYTES = 2048  # like Go's servers
Fault = Status | str | None  # None: the correct response


@dataclass
class Cluster:
    """The objects that are served, and the requests so far."""

    nodes: list[Json] = field(default_factory=list)
    pods: list[Json] = field(default_factory=list)
    rights: Sequence[Json] | None = None  # RBAC objects; None: everything is allowed
    faults: list[Fault] = field(default_factory=list)  # for the next requests, in order
    most_items: int = 500  # items of a page
    minds_limit: bool = True  # also with resourceVersion=0, as not all versions do
    calls: list[Call] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)
    service_account: Path = Path()
    ending: threading.Event = field(default_factory=threading.Event)

    def answer(self, call: Call) -> Json | Status:
        """Return the list, or the error."""
        if not self._is_allowed(call):
            where = f'in the namespace "{call.namespace}"' if call.namespace else "at the cluster scope"
            user = f"system:serviceaccount:{USER[1]}:{USER[0]}"
            cannot = f'cannot list resource "{call.resource}" in API group ""'
            words = f'{call.resource} is forbidden: User "{user}" {cannot} {where}'
            return Status(403, "Forbidden", words)
        version, continuation = call.query.get("resourceVersion"), call.query.get("continue")
        if call.query.get("resourceVersionMatch") and (continuation or not version):
            return Status(422, "Invalid", "resourceVersionMatch is forbidden when continue is provided")
        if continuation and version not in (None, "0"):
            return Status(400, "BadRequest", "specifying resource version is not allowed when using continue")
        items = self._items(call)
        start = int(base64.b64decode(continuation)) if continuation else 0
        limit = min(int(call.query.get("limit", len(items))), self.most_items)
        if version == "0" and not self.minds_limit:
            limit = len(items)
        metadata: Json = {"resourceVersion": "4711"}
        if start + limit < len(items):
            metadata["continue"] = base64.b64encode(str(start + limit).encode()).decode()
            metadata["remainingItemCount"] = len(items) - start - limit
        return {"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items[start : start + limit]}

    def _items(self, call: Call) -> list[Json]:
        if call.resource == "nodes":
            return self.nodes
        refused = [
            each.removeprefix("status.phase!=") for each in call.query.get("fieldSelector", "").split(",") if each
        ]
        return [
            pod
            for pod in self.pods
            if call.namespace in (None, pod["metadata"]["namespace"]) and pod["status"]["phase"] not in refused
        ]

    def _is_allowed(self, call: Call) -> bool:
        if self.rights is None:
            return True
        roles = {
            (each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]): each["rules"]
            for each in self.rights
            if "rules" in each
        }
        accounts = {
            (each["metadata"]["name"], each["metadata"]["namespace"])
            for each in self.rights
            if each["kind"] == "ServiceAccount"
        }
        for binding in (each for each in self.rights if "roleRef" in each):
            subjects = {(each["name"], each["namespace"]) for each in binding["subjects"]}
            namespace = binding["metadata"].get("namespace")
            role = binding["roleRef"]
            rules = roles[(role["kind"], namespace if role["kind"] == "Role" else None, role["name"])]
            is_bound = USER in subjects & accounts and namespace in (None, call.namespace)
            if is_bound and any(_allows(rule, call.resource) for rule in rules):
                return True
        return False


def _allows(rule: Json, resource: str) -> bool:
    return "" in rule["apiGroups"] and resource in rule["resources"] and "list" in rule["verbs"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    cluster: Cluster

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        cluster = self.server.cluster
        url = urlsplit(self.path)
        parts = url.path.strip("/").split("/")[2:]  # after api/v1
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        call = Call(parts[-1], parts[1] if len(parts) == 3 else None, query)
        cluster.calls.append(call)
        fault = cluster.faults.pop(0) if cluster.faults else None
        if self.headers["Authorization"].lower() != f"bearer {TOKEN}":
            fault = Status(401, "Unauthorized", "Unauthorized")
        if fault == HANG:
            cluster.ending.wait()
            self.close_connection = True
            return
        answer = fault if isinstance(fault, Status) else cluster.answer(call)
        if isinstance(answer, Status):
            content = {"kind": "Status", "code": answer.code, "reason": answer.reason, "message": answer.message}
            self._send(answer.code, answer.body or json.dumps(content).encode(), fault)
        else:
            self._send(200, json.dumps(answer).encode(), fault)

    def _send(self, code: int, body: bytes, fault: Fault) -> None:
        is_chunked = len(body) > CHUNKED_ABOVE_BYTES
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        if is_chunked:
            self.send_header("Transfer-Encoding", "chunked")
            size = 1000
            parts = [body[at : at + size] for at in range(0, len(body), size)]
            body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in [*parts, b""])
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if fault == DRIP:
            for at in range(len(body)):
                self.wfile.write(body[at : at + 1])
                if self.server.cluster.ending.wait(0.05):
                    return
        elif fault == CUT:
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        else:
            self.wfile.write(body)


@contextmanager
def serving(directory: Path) -> Iterator[Cluster]:
    """Serve a cluster; `directory` gets the service account of a pod in it."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(directory / "ca.crt"))
    (directory / "token").write_text(TOKEN)
    (directory / "namespace").write_text(NAMESPACE)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}
    server.cluster = Cluster(environ=environ, service_account=directory)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.cluster
    finally:
        server.cluster.ending.set()
        server.shutdown()
        thread.join()
        server.server_close()
