"""Environments of a cluster under faults: how its processes reach each other."""

import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib.resources import files
from pathlib import Path

from baton.deployment.local.ports import free_ports
from tests.faults.cluster import Cluster, running
from tests.faults.machines import machines, why_no_machines
from tests.faults.node import BatonNode
from tests.faults.proxy import Proxy
from tests.faults.redis_node import RedisNode
from tests.redis_server import find_redis_server

HOST = "127.0.0.1"
MODEL = str(files("baton") / "bundled_model")
BEHIND_PROXY = "tests.faults.behind_proxy"
WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")
WORKER_FLAGS = ("--dtype=float32", "--num-threads=1", "--kv-cache-memory-bytes=64MiB", "--max-num-batched-tokens=256",
                "--drain-timeout-s=0.3")  # fmt: skip
ROUTER_FLAGS = ("--local-prefill-below=64", "--drain-timeout-s=30", "--watch-interval-ms=10")
NUM_ROUTERS = 2
LEASE_S = 2.0

Place = Callable[[Path], AbstractAsyncContextManager[Cluster]]  # from a directory for its files


@asynccontextmanager
async def one_machine(directory: Path) -> AsyncIterator[Cluster]:
    """Run on one machine: KV over shared memory, gRPC to workers through proxies that inject faults."""
    async with AsyncExitStack() as stack:
        ports = free_ports(HOST, len(WORKERS))
        proxies = [await stack.enter_async_context(Proxy(HOST, port)) for port in ports]
        workers = [worker_node(name, HOST, port, directory) for name, port in zip(WORKERS, ports, strict=True)]
        routers = router_nodes(directory, given([proxy.address for proxy in proxies]))
        made = Cluster(routers, workers, dict(zip(WORKERS, proxies, strict=True)))
        yield await stack.enter_async_context(running(made))


@asynccontextmanager
async def resuming(directory: Path) -> AsyncIterator[Cluster]:
    """Run with clients that resume their streams and reach routers through proxies; routers drain for less time than
    most requests take.
    """
    async with AsyncExitStack() as stack:
        ports = free_ports(HOST, len(WORKERS))
        workers = [worker_node(name, HOST, port, directory) for name, port in zip(WORKERS, ports, strict=True)]
        routers = router_nodes(directory, given([worker.address for worker in workers]), ("--drain-timeout-s=0.3",))
        proxies: dict[str, Proxy] = {}
        for router in routers:
            host, _, port = router.address.rpartition(":")
            proxies[router.name] = await stack.enter_async_context(Proxy(host, int(port)))
        entrances = [proxy.address for proxy in proxies.values()]
        yield await stack.enter_async_context(running(Cluster(routers, workers, proxies, entrances=entrances)))


@asynccontextmanager
async def bad_links(directory: Path) -> AsyncIterator[Cluster]:
    """Run with KV over TCP through proxies that inject faults, and a registry in Redis."""
    async with AsyncExitStack() as stack:
        redis = RedisNode(directory / "redis")
        registry = f"--registry={redis.url}"
        ports = free_ports(HOST, 2 * len(WORKERS))
        proxies, workers = [], []
        for name, port, kv_port in zip(WORKERS, ports, ports[len(WORKERS) :], strict=False):
            proxy = await stack.enter_async_context(Proxy(HOST, kv_port))
            launcher = (sys.executable, "-m", BEHIND_PROXY, str(proxy.port))
            flags = (registry, f"--lease-s={LEASE_S}", "--transport=tcp", f"--kv-port={kv_port}")
            workers.append(worker_node(name, HOST, port, directory, flags, launcher))
            proxies.append(proxy)
        made = Cluster(
            router_nodes(directory, registry), workers, dict(zip(WORKERS, proxies, strict=True)), stores=[redis]
        )
        yield await stack.enter_async_context(running(made))


@asynccontextmanager
async def many_machines(directory: Path) -> AsyncIterator[Cluster]:
    """Run every worker on its own emulated machine, whose cable can be unplugged; the transport is `auto`."""
    with machines(len(WORKERS)) as hosts:
        workers = []
        for name, machine, port in zip(WORKERS, hosts, free_ports(HOST, len(WORKERS)), strict=True):
            launcher = (*machine.launcher, sys.executable, "-m")
            workers.append(worker_node(name, machine.host, port, directory, launcher=launcher))
        routers = router_nodes(directory, given([worker.address for worker in workers]))
        made = Cluster(routers, workers, machines=dict(zip(WORKERS, hosts, strict=True)))
        async with running(made) as cluster:
            yield cluster


def why_not(place: Place) -> str | None:
    """Return why such a cluster cannot run here; None if it can."""
    if place is bad_links and find_redis_server() is None:
        return "no redis-server or valkey-server on this machine"
    return why_no_machines() if place is many_machines else None


def worker_node(
    name: str, host: str, port: int, directory: Path, flags: tuple[str, ...] = (),
    launcher: tuple[str, ...] = (sys.executable, "-m"), model: str = MODEL,
) -> BatonNode:  # fmt: skip
    """Create a worker; its name begins with its role."""
    role, _ = name.split("-")
    own = (f"--worker-id={name}", f"--model={model}")
    return BatonNode(role, name, host, port, directory, (*own, *flags, *WORKER_FLAGS), launcher)


def router_nodes(directory: Path, workers: str, own: tuple[str, ...] = ()) -> Sequence[BatonNode]:
    """Create the routers; `workers`: the flag by which they find the workers."""
    flags = (f"--model={MODEL}", workers, *ROUTER_FLAGS, *own)
    ports = free_ports(HOST, 2 * NUM_ROUTERS)
    pairs = zip(ports[:NUM_ROUTERS], ports[NUM_ROUTERS:], strict=True)
    return [
        BatonNode("router", f"router-{n}", HOST, port, directory, flags, grpc_port=grpc_port)
        for n, (port, grpc_port) in enumerate(pairs)
    ]


def given(addresses: Sequence[str]) -> str:
    """Return a router's flag for workers at fixed addresses."""
    return f"--workers={','.join(addresses)}"
