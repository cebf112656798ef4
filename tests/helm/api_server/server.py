"""The server in a thread of its own, over TLS, as clients outside and inside a cluster reach it."""

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trustme
import uvicorn
import yaml

from tests.helm.api_server.api import Api, Validate, Writing
from tests.helm.api_server.app import Asked, HttpApi
from tests.helm.api_server.authorization import EVERYTHING, User
from tests.helm.api_server.builtin_resources import BUILT_IN, KUBERAY
from tests.helm.api_server.errors import Json
from tests.helm.api_server.resource_types import ResourceType, ResourceTypes

Answer = TypeVar("Answer")
Controller = Callable[[Api], Coroutine[None, None, None]]  # runs beside the server until it is cancelled
START_S = 20.0
QUIET_TURNS = 20  # more than it takes from a change to what a controller makes of it
MINOR = 34


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A running server."""

    port: int
    authority: Path  # of its certificate
    admin_token: str
    http: HttpApi
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        """Where it is."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def asked(self) -> list[Asked]:
        """Every request so far."""
        return list(self.http.asked)

    def kubeconfig(self, namespace: str, token: str | None = None) -> str:
        """For clients outside; the administrator's if no token is named."""
        cluster = {"server": self.url, "certificate-authority": str(self.authority)}
        written = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "here", "user": {"token": token or self.admin_token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "here", "namespace": namespace}}],
        }
        return yaml.safe_dump(written)

    def service_account(self, namespace: str, name: str, directory: Path) -> dict[str, str]:
        """Writes what a pod of that service account finds in its files; its environment variables."""
        token = f"token-{secrets.token_hex(8)}"
        self.call(lambda _: self.http.users.update({token: User.service_account(namespace, name)}))
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "ca.crt").write_bytes(self.authority.read_bytes())
        (directory / "token").write_text(token)
        (directory / "namespace").write_text(namespace)
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.port)}

    def call(self, function: Callable[[Api], Answer]) -> Answer:
        """What it returns; it runs where the server does, so that nothing changes meanwhile."""

        async def called() -> Answer:
            return function(self.http.api)

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(START_S)

    def settle(self) -> None:
        """Waits until the controllers have done all that there is for them: each step of theirs is one of the loop."""

        async def settled() -> None:
            store, turns = self.http.api.store, 0
            num_changes = len(store.changes)
            while turns < QUIET_TURNS:
                await asyncio.sleep(0)
                turns = turns + 1 if len(store.changes) == num_changes else 0
                num_changes = len(store.changes)

        asyncio.run_coroutine_threadsafe(settled(), self.loop).result(START_S)


@contextmanager
def serving(
    directory: Path,
    validate: Validate,
    *,
    types: Sequence[ResourceType] = (*BUILT_IN, *KUBERAY),
    namespaces: Sequence[str] = ("default",),
    controllers: Sequence[Controller] = (),
    minor: int = MINOR,
) -> Iterator[ApiServer]:
    """A server with these namespaces and nothing else; its files are in `directory`."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(directory / "authority.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(directory / "server.pem"))
    token = f"token-{secrets.token_hex(8)}"  # without letters in front, YAML may read digits as a number
    # With its protocol named, asyncio turns Nagle's delay of 40 ms off.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        running = _Running(directory / "server.pem", listening, controllers)
        thread = threading.Thread(target=running.run, args=(validate, types, namespaces, minor, token))
        thread.start()
        try:
            if not running.started.wait(START_S) or running.http is None or running.loop is None:
                raise RuntimeError("the API server did not start")
            port = listening.getsockname()[1]
            yield ApiServer(port, directory / "authority.pem", token, running.http, running.loop)
        finally:
            running.stop()
            thread.join()


class _Uvicorn(uvicorn.Server):
    """Ends at once when it is told, instead of looking every tenth of a second."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    async def main_loop(self) -> None:
        await self._ending.wait()


class _Running:
    """Owns the server's event loop."""

    def __init__(self, certificate: Path, listening: socket.socket, controllers: Sequence[Controller]) -> None:
        self._certificate, self._listening, self._controllers = certificate, listening, controllers
        listening.listen()
        self.started = threading.Event()
        self.http: HttpApi | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._ending: asyncio.Event | None = None

    def run(
        self, validate: Validate, types: Sequence[ResourceType], namespaces: Sequence[str], minor: int, token: str
    ) -> None:
        """Until `stop`."""

        async def serve() -> None:
            self.loop, self._ending = asyncio.get_running_loop(), asyncio.Event()
            api = Api(ResourceTypes(types), validate)
            for name in namespaces:
                namespace: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
                api.create(api.types.of_kind("Namespace"), "", namespace, Writing("server"))
            self.http = HttpApi(api, minor, {token: User("admin", frozenset({EVERYTHING}))})
            await self._serve(self.http)

        try:
            asyncio.run(serve())
        finally:
            self.started.set()

    async def _serve(self, http: HttpApi) -> None:
        assert self._ending is not None
        config = uvicorn.Config(
            http.app(),
            ssl_certfile=str(self._certificate),
            lifespan="off",
            log_level="warning",
            timeout_graceful_shutdown=5,
            access_log=False,
        )
        server = _Uvicorn(config, self._ending)
        async with asyncio.TaskGroup() as tasks:
            beside = [tasks.create_task(each(http.api)) for each in self._controllers]
            serving = tasks.create_task(server.serve(sockets=[self._listening]))
            self.started.set()  # it listens already: whoever comes now waits a moment
            await self._ending.wait()
            http.api.store.end()
            for connection in list(server.server_state.connections):
                connection.transport.abort()  # whoever is still there would be waited for
            await serving
            for each in beside:
                each.cancel()

    def stop(self) -> None:
        """Ends the server and its controllers."""
        if self.loop is not None and self._ending is not None and self.loop.is_running():
            self.loop.call_soon_threadsafe(self._ending.set)
