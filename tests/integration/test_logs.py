"""Logs and spans of a whole cluster name requests, and never have text of a prompt, an output or a key."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import httpx
import pytest

from baton.deployment.local.process_states import STATES_FILE
from baton.process.log_settings import LOG_FORMATS
from baton.process.states import read_states
from baton.protos import router_pb2, router_pb2_grpc
from benchmarks.server import free_port, wait_ready
from tests.otlp_collector import Collector, grpc_collector

SECRET, KEY, WRONG_KEY = "quartzmarkedprompt", "sk-quartzmarkedkey", "sk-quartzwrongkey"
TEXT = f"{SECRET} the lamp by the door was blue and {SECRET} " * 8
MODEL = "baton-bundled"
SAMPLING = {"model": MODEL, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
CHAT = [{"role": "user", "content": TEXT}]
TOOL = {"type": "function", "function": {"name": SECRET, "parameters": {"type": "object", "properties": {}}}}
IMAGE = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SECRET}"}}]
GOOD = {
    "/v1/chat/completions": {**SAMPLING, "messages": CHAT},
    "/v1/completions": {**SAMPLING, "prompt": TEXT},
    "/v1/messages": {"model": MODEL, "max_tokens": 4, "messages": CHAT},
    "/v1/messages/count_tokens": {"model": MODEL, "messages": CHAT},
    "/v1/responses": {"model": MODEL, "input": TEXT, "max_output_tokens": 4},
    "/tokenize": {"model": MODEL, "prompt": TEXT},
    "/v1/cache/pins": {"model": MODEL, "messages": CHAT, "ttl_seconds": 60},
    f"/v2/models/{MODEL}/generate": {"text_input": TEXT, "max_tokens": 4},
}
BAD: tuple[object, ...] = (  # for each endpoint: wrong types, unknown fields, what cannot be served
    {**SAMPLING, "messages": TEXT, "prompt": {TEXT: TEXT}, "input": {TEXT: TEXT}},
    {**SAMPLING, "messages": CHAT, "prompt": TEXT, "input": TEXT, SECRET: TEXT},
    {**SAMPLING, "messages": [{"role": SECRET, "content": TEXT}], "prompt": [TEXT, 1]},
    {**SAMPLING, "messages": CHAT, "prompt": TEXT, "input": TEXT, "max_tokens": 10**9},
    {**SAMPLING, "messages": CHAT, "tools": [TOOL, TOOL], "tool_choice": {"type": "function", "function": TEXT}},
    {**SAMPLING, "messages": [{"role": "user", "content": IMAGE}]},
    {**SAMPLING, "messages": CHAT, "prompt": TEXT, "response_format": {"type": "json_schema", "json_schema": TEXT}},
    [TEXT],
)


@dataclass(frozen=True, slots=True)
class Server:
    """A running `baton serve` that logs all that it can."""

    url: str
    grpc_address: str
    process: asyncio.subprocess.Process
    logs: Path
    collector: Collector

    def client(self, key: str = KEY) -> httpx.AsyncClient:
        """Return a client with a key."""
        headers = {"authorization": f"Bearer {key}", "x-api-key": key}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=120)

    def written(self) -> Iterable[tuple[str, bytes]]:
        """Yield all that the processes have written, by file, and the spans."""
        for path in sorted(self.logs.iterdir()):
            if path.is_file():
                yield path.name, path.read_bytes()
        yield "spans", self.collector.raw

    async def crash_decode_worker(self) -> None:
        """Make a decode worker dump its stacks, then let it crash."""
        [state] = [each for each in read_states(self.logs / STATES_FILE) if each.name == "decode-0"]
        assert state.pid is not None
        os.kill(state.pid, signal.SIGUSR2)
        async with asyncio.timeout(30):
            while b"most recent call first" not in (self.logs / "decode-0.log").read_bytes():
                await asyncio.sleep(0.05)
        os.kill(state.pid, signal.SIGABRT)


@asynccontextmanager
async def server(directory: Path, log_format: str) -> AsyncIterator[Server]:
    """Run a prefill and a decode worker, a router with HTTP and gRPC, and a collector of spans."""
    logs, port, grpc_port = directory / "logs", free_port(), free_port()
    (directory / "files").mkdir()
    async with grpc_collector() as collector:
        flags = (
            *("--dtype", "float32", "--port", str(port), "--grpc-port", str(grpc_port), "--log-dir", str(logs)),
            *("--log-level", "debug", "--log-format", log_format, "--otlp-traces-endpoint", collector.endpoint),
            *("--files-dir", str(directory / "files"), "--local-prefill-below", "16"),
        )
        logs.mkdir()
        with (logs / "serve.out").open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "baton", "serve", *flags),
                stdout=output,
                stderr=output,
                env={**os.environ, "BATON_API_KEY": KEY},
            )
        url = f"http://127.0.0.1:{port}"
        try:
            await wait_ready(url, process)
            yield Server(url, f"127.0.0.1:{grpc_port}", process, logs, collector)
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def send_all(running: Server) -> None:
    """Send good and bad requests to every endpoint, with the right key, a wrong one, and a body that is no JSON."""
    async with running.client() as client, running.client(WRONG_KEY) as stranger:
        paths = (await client.get("/openapi.json")).json()["paths"]
        for path, body in GOOD.items():
            response = await client.post(path, json=body, headers={"x-request-id": "seen-" + path.rsplit("/")[-1]})
            assert response.status_code == 200, (path, response.text)
            assert (await stranger.post(path, json=body)).status_code == 401
        for template, methods in paths.items():
            path = template.replace("{name}", MODEL)
            for parameter in ("{batch_id}", "{pin_id}", "{file_id}", "{response_id}", "{request_id}", "{action}"):
                path = path.replace(parameter, SECRET)
            if "console/events" in path:
                continue
            for method in methods:
                await stranger.request(method, path, params={"q": TEXT, "api_key": WRONG_KEY})
                if method == "get":
                    await client.get(path, params={"q": TEXT, "api_key": KEY})
                    continue
                await client.request(method, path, content=f'{{"prompt": "{TEXT}'.encode())
                for body in BAD:
                    await client.request(method, path, json=body)
        upload = {"file": (f"{SECRET}.jsonl", f'{{"custom_id": "{TEXT}"}}\n'.encode())}
        await client.post("/v1/files", files=upload, data={"purpose": "batch"})
    metadata = (("authorization", f"Bearer {KEY}"),)
    async with grpc.aio.insecure_channel(running.grpc_address) as channel:
        stub = router_pb2_grpc.InferenceStub(channel)
        for prompt in (router_pb2.GenerateRequest(text=TEXT), router_pb2.GenerateRequest(model=SECRET, text=TEXT)):
            try:
                async for _ in stub.Generate(prompt, metadata=metadata):
                    pass
            except grpc.aio.AioRpcError:
                pass  # the second one names no model that is served


async def crash(running: Server) -> None:
    """Crash the decode worker while it generates."""
    async with running.client() as client:
        body = {**GOOD["/v1/chat/completions"], "max_tokens": 500, "stream": True}
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            num_events = 0
            async for line in response.aiter_lines():
                num_events += line.startswith("data: {")
                if num_events == 5:
                    await running.crash_decode_worker()
                    num_events += 1


def check_json(log: bytes) -> None:
    """Check that all lines but those of native libraries are objects, and that one names its request."""
    records = [json.loads(line) for line in log.splitlines() if line.startswith(b"{")]
    assert all(
        {"time", "level", "process", "role", "host", "pid", "logger", "message"} <= set(record) for record in records
    )
    assert all(record.get("worker", record["role"]) == record["process"] for record in records)
    assert any("seen-completions" in record.get("request_id", "") for record in records)
    assert not re.search(rb"^\S+Z (DEBUG|INFO|WARNING|ERROR) ", log, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("log_format", LOG_FORMATS)
async def test_no_prompt_and_no_key_is_logged_or_traced_and_requests_are_named(tmp_path: Path, log_format: str) -> None:
    async with server(tmp_path, log_format) as running:
        await send_all(running)
        await crash(running)
        await running.collector.until(lambda spans: "prefill" in {span.name for span in spans})
    written = dict(running.written())
    for name, content in written.items():
        for secret in (SECRET, KEY, WRONG_KEY):
            assert secret.encode() not in content, f"{name}: {content[content.index(secret.encode()) - 300 :][:600]!r}"
    for name in ("router.log", "prefill-0.log", "decode-0.log"):
        assert b"seen-completions" in written[name], name
        if log_format == "json":
            check_json(written[name])
