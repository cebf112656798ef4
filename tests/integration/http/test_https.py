"""Routers with HTTPS, from the view of clients and operators."""

import asyncio
import ssl
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trustme
from openai import AsyncOpenAI

from baton.rpc.tls import TlsFiles
from baton.settings.names import Role
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from benchmarks.server import free_port
from tests.integration.completion_load import complete, completion_load
from tests.integration.router_process import DEADLINE_S, MODEL, RouterProcess, router_process
from tests.marks import slow_case
from tests.unit.rpc.test_tls import write

HOST = "127.0.0.1"
SPEC = WorkerSpec(step_s=0.01, prefill_tokens_per_s=1e6)
ROLES: tuple[Role, ...] = ("decode", "decode")


def flags(files: TlsFiles) -> tuple[str, ...]:
    """Return the options of a server with these files."""
    return (f"--ssl-certfile={files.cert}", f"--ssl-keyfile={files.key}")


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    """Return the context of a client that trusts only this authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    return context


def client_of(router: RouterProcess, context: ssl.SSLContext) -> httpx.AsyncClient:
    """Return a client with one connection."""
    limits, url = httpx.Limits(max_connections=1), f"https://{HOST}:{router.port}"
    return httpx.AsyncClient(base_url=url, timeout=DEADLINE_S, limits=limits, trust_env=False, verify=context)


@asynccontextmanager
async def https_router(
    directory: Path, *options: str, module: tuple[str, ...] = ("router",)
) -> AsyncIterator[RouterProcess]:
    """Run a router with HTTPS and simulated workers."""
    configs = [
        SimulatedWorkerConfig(worker_id=f"{role}-{number}", role=role, model=MODEL.name, spec=SPEC)
        for number, role in enumerate(ROLES)
    ]
    async with simulated_workers(configs) as workers:
        addresses = ",".join(worker.address for worker in workers)
        async with router_process(directory, "--port=0", f"--workers={addresses}", *options, module=module) as router:
            yield router


async def wait_served(client: httpx.AsyncClient) -> None:
    """Wait until the router has a worker."""
    async with asyncio.timeout(DEADLINE_S):
        while (await client.get("/ready")).status_code != httpx.codes.OK:
            await asyncio.sleep(0.02)


async def connect(router: RouterProcess, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(HOST, router.port, ssl=context)


async def serial(router: RouterProcess, context: ssl.SSLContext) -> str:
    """Return the serial number of the certificate that a new connection receives."""
    _, writer = await connect(router, context)
    shown: str = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
    writer.transport.abort()
    return shown


@pytest.mark.slow
async def test_clients_are_served_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    async with (
        https_router(tmp_path, *flags(write(tmp_path, authority, HOST))) as router,
        client_of(router, trusting(authority)) as http,
        AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0, http_client=http) as openai,
    ):
        await wait_served(http)
        stream = await openai.chat.completions.create(
            model=MODEL.name, messages=[{"role": "user", "content": "hello"}], max_tokens=20, stream=True
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].choices[0].finish_reason == "length"
        assert len(chunks) > 2  # a slow machine merges tokens
        large = await http.post("/tokenize", json={"prompt": "word " * 100_000})
        assert large.json()["count"] > 100_000  # several hundred kilobytes in each direction
        assert f"at https://{HOST}:{router.port}" in router.log()
        for verify, url in ((trusting(trustme.CA()), http.base_url), (False, f"http://{HOST}:{router.port}")):
            async with httpx.AsyncClient(verify=verify, trust_env=False) as stranger:
                with pytest.raises(httpx.TransportError):
                    await stranger.get(f"{url}/health")
        assert (await http.get("/health")).status_code == httpx.codes.OK


async def test_renewed_files_serve_new_connections(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = trusting(authority)
    options = ("--processes=2", *flags(write(tmp_path / "files", authority, HOST)))
    async with (
        https_router(tmp_path, *options, module=("baton", "router")) as router,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(client_of(router, context)) for _ in range(4)]
        for client in clients:
            await wait_served(client)
        async with completion_load(*clients) as load:
            await load.more(2)
            [before] = {await serial(router, context) for _ in range(8)}
            write(tmp_path / "files", authority, HOST)
            [after] = {await serial(router, context) for _ in range(16)}  # of both processes
            assert before != after
            await load.more(2)
        assert f"2 router processes serve {MODEL.name} at https://" in router.log()
        assert "certificates for HTTPS were replaced" in router.log()


@pytest.mark.slow
async def test_clients_without_a_certificate_are_refused(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write(tmp_path / "router", authority, HOST)
    options = (*flags(files), f"--ssl-ca-certs={files.ca}", "--ssl-cert-reqs=2")
    async with https_router(tmp_path, *options) as router:
        member = trusting(authority)
        authority.issue_cert("client.baton.test").configure_cert(member)
        async with client_of(router, member) as client:
            assert (await client.get("/health")).status_code == httpx.codes.OK
        async with client_of(router, trusting(authority)) as client:
            with pytest.raises(httpx.TransportError):
                await client.get("/health")
        own = write(tmp_path / "client", authority, "client.baton.test")
        url = f"--url=https://{HOST}:{router.port}"
        assert "decode-0" in await baton("status", "--once", url, *shows(own))
        assert "no server answers" in await baton("status", "--once", url, f"--ssl-ca-certs={own.ca}")


def shows(files: TlsFiles) -> tuple[str, ...]:
    """Return the options of a command with a client certificate."""
    return (f"--ssl-ca-certs={files.ca}", *flags(files))


async def baton(*words: str, typed: str = "") -> str:
    """Run a command and return its output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton", *words, stdin=PIPE, stdout=PIPE, stderr=STDOUT
    )
    output, _ = await process.communicate(typed.encode())
    return output.decode()


@pytest.mark.slow
async def test_commands_use_https(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = write(tmp_path / "router", authority, HOST)
    async with https_router(tmp_path, *flags(files)) as router, client_of(router, trusting(authority)) as client:
        await wait_served(client)
        url, trust = f"--url=https://{HOST}:{router.port}", f"--ssl-ca-certs={files.ca}"
        assert "decode-1" in await baton("status", "--once", url, trust)
        assert "pass the authority that signed its certificate by --ssl-ca-certs" in await baton(
            "status", "--once", url
        )
        assert "Error" not in await baton("chat", "--max-tokens=2", url, trust, typed="hello\n")
        assert await baton("drain", "--force", "decode-0", url, trust) == "decode-0 is drained\n"


@pytest.mark.slow
async def test_shutdown_waits_for_responses_but_not_for_idle_connections(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = trusting(authority)
    async with (
        https_router(tmp_path, *flags(write(tmp_path, authority, HOST))) as router,
        client_of(router, context) as client,
    ):
        await wait_served(client)
        _, idle = await connect(router, context)
        idle.transport.pause_reading()  # so that the client does not complete the TLS shutdown
        _, silent = await asyncio.open_connection(HOST, router.port)  # a connection without a handshake
        asked = asyncio.create_task(complete(client, 0, max_tokens=200))
        while not await in_flight(router, context):
            await asyncio.sleep(0.01)
        begun_s = time.monotonic()
        router.child.terminate()
        assert (await asked).headers["connection"] == "close"
        assert await router.child.wait() == 0
        assert time.monotonic() - begun_s < 15
        for writer in (idle, silent):
            writer.transport.abort()


async def in_flight(router: RouterProcess, context: ssl.SSLContext) -> int:
    """Return the number of completions in flight at the router."""
    async with client_of(router, context) as client:
        num_inflight: int = (await client.get("/workers")).json()["router"]["inflight"]
        return num_inflight


@pytest.mark.parametrize(
    "command",
    [
        ("router", f"--model={MODEL}"),
        slow_case(("baton", "router", f"--model={MODEL}", "--processes=2")),
        slow_case(("baton", "serve")),
    ],
)
def test_unusable_files_are_a_usage_error(tmp_path: Path, command: tuple[str, ...]) -> None:
    authority = trustme.CA()
    files, others = (write(tmp_path / name, authority, HOST) for name in ("files", "others"))
    port = f"--port={free_port()}"
    for options, words in (
        ((f"--ssl-certfile={files.cert}",), "ssl_certfile: ssl_certfile and ssl_keyfile must be given together"),
        ((f"--ssl-certfile={files.cert}", f"--ssl-keyfile={others.key}"), "is not that of the certificate"),
    ):
        argv = (sys.executable, "-m", *command, port, *options)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        assert words in done.stderr
        assert "Traceback" not in done.stderr


async def test_a_whole_cluster_is_served_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    port, log = free_port(), tmp_path / "serve.log"
    options = ("--colocated=1", "--num-threads=1", f"--port={port}", *flags(write(tmp_path, authority, "localhost")))
    with log.open("w") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "baton", "serve", *options, stdout=output, stderr=STDOUT
        )
    try:
        async with asyncio.timeout(120):
            while f"at https://{HOST}:{port}" not in log.read_text():
                assert process.returncode is None, log.read_text()
                await asyncio.sleep(0.1)
        async with httpx.AsyncClient(verify=trusting(authority), trust_env=False, timeout=DEADLINE_S) as client:
            body = {"prompt": "def", "max_tokens": 4}
            answer = await client.post(f"https://localhost:{port}/v1/completions", json=body)
            assert answer.status_code == httpx.codes.OK
    finally:
        process.terminate()
        await process.wait()
    assert process.returncode == 0
