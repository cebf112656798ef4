"""`baton doctor` on a real cluster, and the doctor of real workers."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from baton.deployment.local.ports import free_ports
from baton.protos import doctor_pb2, doctor_pb2_grpc, worker_pb2, worker_pb2_grpc
from tests.checkpoints import make_checkpoint
from tests.integration.worker_process import WorkerProcess, worker_processes
from tests.integration.workers_view import wait_idle

NUM_PROBES = 6  # more than the threads that a pool may still start


async def doctor(*flags: str) -> tuple[int | None, Any]:
    """Run `baton doctor --json FLAGS`; return its exit status and report."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "baton", "doctor", "--json", *flags, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    return process.returncode, json.loads(output)


async def test_a_healthy_cluster(cluster_url: str, tmp_path: Path) -> None:
    before = await wait_idle(cluster_url)
    status, report = await doctor("--url", cluster_url, f"--kv-store={tmp_path}", f"--weights-offload-dir={tmp_path}")
    failures = [
        finding for section in report["sections"] for finding in section["findings"] if finding["level"] == "failure"
    ]
    assert (status, report["failures"], failures) == (0, 0, [])
    sections = {section["about"]: section for section in report["sections"]}
    checks = [finding["check"] for finding in sections["storage"]["findings"]]
    assert checks == ["kv-store", "weights-space", "weights-direct-reads", "weights-read-speed"]
    names = {role: next(row["worker_id"] for row in before if row["role"] == role) for role in ("prefill", "decode")}
    prefill, decode = (f"{names[role]} ({role})" for role in ("prefill", "decode"))
    for reader, owner in ((decode, prefill), (prefill, decode)):
        link = sections[f"{reader} reads from {owner}"]["links"][0]
        assert (link["asked"], link["transport"]) == ("auto", "shared_memory")
        assert link["rates"]["bytes_per_s"] > 0
    assert sections[f"prefill worker {names['prefill']}"]["versions"]["torch"]
    assert sections["workers compared"]["findings"][0]["check"] == "workers-alike"
    after = await wait_idle(cluster_url)
    assert [row["load"]["num_free_blocks"] for row in after] == [row["load"]["num_free_blocks"] for row in before]
    assert [row["peer_transports"] for row in after] == [row["peer_transports"] for row in before]


@pytest.mark.slow
async def test_failures_are_reported_and_change_the_exit_status() -> None:
    port = free_ports("127.0.0.1", 1)[0]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "baton", "doctor", "--registry", f"redis://:secret@127.0.0.1:{port}"),
        *("--url", f"127.0.0.1:{port}"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    output, errors = (text.decode() for text in await process.communicate())
    assert process.returncode == 1, errors
    failed = [line.split()[1] for line in output.splitlines() if line.startswith("failure")]
    assert failed == ["registry", "router-unreachable"]
    assert "auto chose shared_memory" in output
    assert "secret" not in output + errors


async def probe(reader: WorkerProcess, owner: WorkerProcess) -> list[doctor_pb2.Link]:
    """Return a worker's report on its links to another worker's pool."""
    stub: doctor_pb2_grpc.DoctorAsyncStub = doctor_pb2_grpc.DoctorStub(reader.channel)
    return list((await stub.Probe(doctor_pb2.ProbeRequest(address=owner.address), timeout=60)).links)


@asynccontextmanager
async def introduced(*workers: WorkerProcess) -> AsyncIterator[None]:
    """Introduce the workers to each other, as a router with their addresses does."""
    request = worker_pb2.WatchRequest(interval_ms=1000, workers=[worker.address for worker in workers])
    calls = [worker_pb2_grpc.WorkerStub(worker.channel).Watch(request) for worker in workers]
    for call in calls:
        await call.read()
    yield
    for call in calls:
        call.cancel()


async def refusal(reader: WorkerProcess, owner: WorkerProcess) -> str:
    """Return why a worker does not read from another one."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await probe(reader, owner)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    return caught.value.details() or ""


def held(worker: WorkerProcess) -> tuple[int, int]:
    """Return the numbers of open files and threads of a worker."""
    process = psutil.Process(worker.child.pid)
    return process.num_fds(), process.num_threads()


@pytest.mark.slow
async def test_probes_leak_nothing_and_do_not_wait_for_a_stopped_owner(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    pair = ("prefill", "--transport=tcp"), ("decode", "--transport=auto")
    async with worker_processes(model, tmp_path, *pair) as (prefill, decode):
        assert "no router that watches this worker" in await refusal(prefill, decode)
        async with introduced(prefill, decode):
            await examine_links(prefill, decode)


async def examine_links(prefill: WorkerProcess, decode: WorkerProcess) -> None:
    for choice, *others in await asyncio.gather(*(probe(decode, prefill) for _ in range(3))):
        assert (choice.asked, choice.transport, choice.HasField("rates")) == ("auto", "tcp", True)
        assert not others  # the owner offers no other transports
    by_tcp, by_shared_memory = await probe(prefill, decode)
    assert (by_tcp.asked, by_tcp.transport) == ("tcp", "tcp")
    assert (by_shared_memory.asked, by_shared_memory.transport) == ("shared_memory", "shared_memory")
    assert by_shared_memory.rates.limit.name == "a memory copy"
    num_files, num_threads = held(decode)
    for _ in range(NUM_PROBES):
        await probe(decode, prefill)
    async with asyncio.timeout(10):
        while held(decode)[0] > num_files:
            await asyncio.sleep(0.05)
    assert held(decode)[1] < num_threads + NUM_PROBES  # a pool of threads may have grown
    os.kill(decode.child.pid, signal.SIGSTOP)
    try:
        [link] = await probe(prefill, decode)
    finally:
        os.kill(decode.child.pid, signal.SIGCONT)
    assert not link.HasField("transport")
    assert "does not respond" in link.reason
    assert [link.transport for link in await probe(prefill, decode)] == ["tcp", "shared_memory"]
