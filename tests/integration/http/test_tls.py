"""A cluster with mutual TLS: handovers work, and calls without a certificate fail."""

from pathlib import Path

import grpc
import httpx
import trustme

from baton.protos.worker_pb2 import DescribeRequest
from baton.protos.worker_pb2_grpc import WorkerStub
from tests.integration.moves.drain_command import drain
from tests.integration.router_process import MODEL, router_process
from tests.integration.worker_process import worker_processes
from tests.integration.workers_view import wait_all_ready, workers
from tests.unit.rpc.test_tls import NAME, write

PROMPT = list(range(300, 500))
BODY = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": True}


def flags(directory: Path, authority: trustme.CA) -> tuple[str, ...]:
    """Return the options of a process with its own certificate."""
    files = write(directory, authority)
    return (f"--tls-cert={files.cert}", f"--tls-key={files.key}", f"--tls-ca={files.ca}", f"--tls-server-name={NAME}")


async def is_refused(address: str) -> bool:
    """Return whether a call without a certificate fails."""
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            await WorkerStub(channel).Describe(DescribeRequest(), timeout=10)
        except grpc.aio.AioRpcError as error:
            return error.code() is grpc.StatusCode.UNAVAILABLE
    return False


async def test_every_hop_is_encrypted_and_closed_to_others(tmp_path: Path) -> None:
    authority = trustme.CA()
    own = flags(tmp_path / "router", authority)
    secure = [(role, *flags(tmp_path / role, authority)) for role in ("prefill", "decode")]
    async with (
        worker_processes(MODEL, tmp_path, *secure) as (prefill, decode),
        router_process(tmp_path, "--port=0", f"--workers={prefill.address},{decode.address}", *own) as router,
        router.client() as client,
    ):
        await wait_all_ready(router.url)
        answer = await client.post("/v1/completions", json=BODY, headers={"x-baton-plan": "remote"})
        assert answer.status_code == httpx.codes.OK, answer.text
        assert int(answer.headers["x-baton-handed-over-tokens"]) == len(PROMPT)
        assert await is_refused(prefill.address)
        assert await is_refused(decode.address)
        [name] = [each["worker_id"] for each in await workers(router.url) if each["role"] == "decode"]
        assert "Error" in await drain(router.url, name)
        assert await drain(router.url, name, "--force", *own) == f"{name} is drained\n"
