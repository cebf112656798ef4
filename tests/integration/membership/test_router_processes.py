"""`baton router --processes N`: one port, one set of metrics, and independent ends of the processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import httpx
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from baton.deployment.local.process_states import STATES_FILE
from baton.protos.common_pb2 import SamplingParams
from baton.protos.router_pb2 import GenerateRequest
from baton.protos.router_pb2_grpc import InferenceStub
from baton.settings.names import Role
from baton.simulation.engine.spec import WorkerSpec
from baton.simulation.workers.app import simulated_workers
from baton.simulation.workers.worker_config import SimulatedWorkerConfig
from tests.integration.completion_load import PROMPT_TOKENS, complete, completion_load
from tests.integration.router_process import MODEL, RouterProcess, router_process, wait_router, wait_workers
from tests.process_ends import wait_gone

SPEC = WorkerSpec(step_s=0.002, prefill_tokens_per_s=1e6)
ROLES: tuple[Role, ...] = ("prefill", "decode", "decode")


@asynccontextmanager
async def group(directory: Path, spec: WorkerSpec = SPEC, *more_flags: str) -> AsyncIterator[RouterProcess]:
    """Run two router processes with simulated workers."""
    configs = [
        SimulatedWorkerConfig(worker_id=f"{role}-{number}", role=role, model=MODEL.name, spec=spec)
        for number, role in enumerate(ROLES)
    ]
    async with simulated_workers(configs) as workers:
        addresses = ",".join(worker.address for worker in workers)
        flags = ("--processes=2", "--port=0", "--grpc-port=0", f"--workers={addresses}", *more_flags)
        async with router_process(directory, *flags, module=("baton", "router")) as router:
            yield router


async def client_of(router: RouterProcess, process: int, stack: AsyncExitStack) -> httpx.AsyncClient:
    """Return a client connected to the process with this number."""
    async with asyncio.timeout(60):
        while True:
            client = router.client()
            body = (await client.get("/workers")).json()
            if body["router"]["process"] == process:
                stack.push_async_callback(client.aclose)
                return client
            await client.aclose()


async def samples(client: httpx.AsyncClient, name: str) -> dict[str, float]:
    """Return the values of a series by process."""
    families = text_string_to_metric_families((await client.get("/metrics")).text)
    found = [sample for family in families for sample in family.samples if sample.name == name]
    return {sample.labels["process"]: sample.value for sample in found}


async def processes(router: RouterProcess) -> list[psutil.Process]:
    """Return the serving processes, ordered by number."""
    async with router.client() as client:
        rows = (await client.get("/workers")).json()["processes"]
    return [psutil.Process(each["pid"]) for each in sorted(rows, key=lambda each: str(each["name"]))]


async def group_dir(router: RouterProcess) -> Path:
    """Return the directory of the processes' sockets."""
    process, *_ = await processes(router)
    paths = [Path(each.laddr) for each in process.net_connections("unix") if each.laddr]
    [directory] = {path.parent for path in paths if path.suffix == ".sock"}
    return directory


async def test_every_process_responds_for_all(tmp_path: Path) -> None:
    async with group(tmp_path) as router, AsyncExitStack() as stack:
        clients = [await client_of(router, process, stack) for process in (0, 1)]
        for process, client in enumerate(clients):
            await wait_workers(client, len(ROLES))
            for _ in range(process + 1):
                await complete(client, 0)
        expected = {"0": PROMPT_TOKENS, "1": 2 * PROMPT_TOKENS}
        for client in clients:
            assert await samples(client, "baton:router_process_up") == {"0": 1, "1": 1}
            assert await samples(client, "baton:prompt_tokens_total") == expected
            assert await samples(client, "baton:router_inflight") == {"0": 0, "1": 0}
            text = (await client.get("/metrics")).text
            assert text.count("# TYPE baton:worker_generation_tokens_total ") == 1
            assert text.count('baton:worker_generation_tokens_total{model_name="bundled_model",worker="decode-1"}') == 1
        for _ in range(4):  # each over a new connection
            async with grpc.aio.insecure_channel(
                str(router.grpc_address), options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_process_that_dies_breaks_only_its_own_connections(tmp_path: Path) -> None:
    async with group(tmp_path) as router, AsyncExitStack() as stack:
        watcher, *survivors = [await client_of(router, 1, stack) for _ in range(4)]
        lost = await client_of(router, 0, stack)
        await complete(lost, 0)
        async with completion_load(*survivors) as load:
            await load.more(5)
            first, _ = await processes(router)
            os.kill(first.pid, signal.SIGKILL)
            await wait_gone(first)
            assert (await samples(watcher, "baton:router_process_up"))["0"] == 0
            async with router.client() as newcomer:  # only the survivor listens
                assert (await newcomer.get("/workers")).json()["router"]["process"] == 1
            await load.more(5)
            again = await client_of(router, 0, stack)
            view = await wait_router(again, lambda view: not view["router"]["degraded"])
            assert len(view["workers"]) == len(ROLES)
            assert int((await complete(again, 0)).headers["x-baton-cached-tokens"]) >= PROMPT_TOKENS - SPEC.block_size
            assert await samples(again, "baton:router_process_up") == {"0": 1, "1": 1}
            await load.more(5)
    assert "router-0: was killed by SIGKILL; restarting in 0.5 s" in router.log()


async def test_a_terminated_process_hands_its_clients_over(tmp_path: Path) -> None:
    async with group(tmp_path, WorkerSpec(step_s=0.01)) as router, AsyncExitStack() as stack:
        watcher = await client_of(router, 1, stack)
        asking, idle = [await client_of(router, 0, stack) for _ in range(2)]
        request = asyncio.create_task(complete(asking, 0, max_tokens=100))
        while (await samples(watcher, "baton:router_inflight"))["0"] != 1:
            await asyncio.sleep(0.01)
        leaving, _ = await processes(router)
        leaving.terminate()
        assert (await request).headers["connection"] == "close"
        await wait_gone(leaving)
        for client in (asking, idle):
            await complete(client, 1)
        assert (await samples(watcher, "baton:router_process_up"))["1"] == 1
        again = await client_of(router, 0, stack)
        await wait_workers(again, len(ROLES))


async def generate(channel: grpc.aio.Channel, max_tokens: int) -> int:
    """Run a request over gRPC and return its number of tokens."""
    request = GenerateRequest(text="hello", sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    return sum([len(response.token_ids) async for response in InferenceStub(channel).Generate(request)])


def listens(process: psutil.Process) -> bool:
    """Return whether the process accepts new connections."""
    return any(each.status == psutil.CONN_LISTEN for each in process.net_connections("tcp"))


@pytest.mark.slow
async def test_a_terminated_process_leaves_new_calls_to_the_others(tmp_path: Path) -> None:
    async with group(tmp_path, WorkerSpec(step_s=0.02)) as router, AsyncExitStack() as stack:
        watcher = await client_of(router, 1, stack)

        async def new_channel() -> grpc.aio.Channel:
            return await stack.enter_async_context(
                grpc.aio.insecure_channel(str(router.grpc_address), options=[("grpc.use_local_subchannel_pool", 1)])
            )

        calls: list[asyncio.Task[int]] = []
        while not (await samples(watcher, "baton:router_inflight"))["0"]:
            calls.append(asyncio.create_task(generate(await new_channel(), 300)))
            async with asyncio.timeout(20):
                while sum((await samples(watcher, "baton:router_inflight")).values()) < len(calls):
                    await asyncio.sleep(0.01)
        leaving, _ = await processes(router)
        assert listens(leaving)
        leaving.terminate()
        async with asyncio.timeout(20):
            while listens(leaving):
                await asyncio.sleep(0.01)
        assert not any(call.done() for call in calls)
        assert [await generate(await new_channel(), 1) for _ in range(12)] == [1] * 12
        assert [await call for call in calls] == [300] * len(calls)
        await wait_gone(leaving)


async def test_shutdown_lets_requests_finish_and_leaves_nothing(tmp_path: Path) -> None:
    async with group(tmp_path, WorkerSpec(step_s=0.02)) as router, AsyncExitStack() as stack:
        directory = await group_dir(router)
        assert directory.stat().st_mode & 0o777 == 0o700
        clients = [await client_of(router, process, stack) for process in (0, 1)]
        serving = await processes(router)
        requests = [asyncio.create_task(complete(client, 0, max_tokens=100)) for client in clients]
        async with router.client() as watcher:
            while sum((await samples(watcher, "baton:router_inflight")).values()) < len(requests):
                await asyncio.sleep(0.01)
        await router.end()
        assert [(await request).status_code for request in requests] == [200, 200]
        await wait_gone(*serving)
        assert not directory.exists()


async def test_processes_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    async with group(tmp_path) as router:
        serving = await processes(router)
        assert len(serving) == 2
        directory = await group_dir(router)
        await router.kill()
        await wait_gone(*serving)
        (directory / STATES_FILE).unlink()  # the parent's file
        directory.rmdir()  # must be empty: each process has removed its socket


@pytest.mark.slow
def test_a_router_that_cannot_serve_reports_the_reason(tmp_path: Path) -> None:
    def run(*flags: str) -> str:
        argv = (sys.executable, "-m", "baton", "router", "--processes=2", "--workers=127.0.0.1:1", *flags)
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1, done.stderr
        assert "Traceback" not in done.stderr
        return done.stderr

    assert "router-" in (text := run(f"--model={tmp_path}", "--port=0"))
    assert "cannot serve" in text
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in run(f"--model={MODEL}", f"--port={port}")


async def test_the_processes_connect_even_if_temporary_paths_are_too_long_for_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / ("t" * 100)
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    async with group(tmp_path) as router, router.client() as client:
        assert (await group_dir(router)).parent == Path("/tmp")
        assert set(await samples(client, "baton:router_process_up")) == {"0", "1"}
