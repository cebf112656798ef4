"""Workers with a fixed port for reads of their KV."""

import asyncio
import json
import socket
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from baton.deployment.local.ports import free_ports
from baton.engine.config import EngineConfig
from baton.settings.values import OptionError
from baton.worker.config import WorkerConfig
from tests.checkpoints import make_checkpoint
from tests.integration.decode_client import decode_client
from tests.integration.handover.test_bad_prefill import GREEDY, PROMPT
from tests.integration.worker_process import worker_processes
from tests.oracle import Oracle

HOST = "127.0.0.1"


async def test_kv_is_read_from_the_given_port(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    port = free_ports(HOST, 1)[0]
    async with (
        worker_processes(
            model, tmp_path, ("prefill", "--transport=tcp", f"--kv-port={port}"), ("decode", "--transport=tcp")
        ) as (prefill, decode),
        decode_client(decode) as client,
    ):
        endpoint = json.loads((await prefill.describe()).pool.endpoints["tcp"])
        assert endpoint["port"] == port
        generation = await client.generate(PROMPT, GREEDY, await prefill.peer())
        assert generation.token_ids == Oracle(model).greedy(PROMPT, GREEDY.max_tokens, generation.token_ids)
        assert generation.served_by.kv_transport == "tcp"


async def test_a_port_in_use_ends_the_start_with_one_line(tmp_path: Path) -> None:
    model = make_checkpoint("qwen3", tmp_path / "model")
    with closing(socket.create_server((HOST, 0))) as listener:
        port = listener.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "baton.decode_worker", "--role=decode", "--model", str(model)),
            *("--num-threads=1", "--kv-cache-memory-bytes=16MiB", f"--kv-port={port}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(60):
            output, _ = await process.communicate()
    log = output.decode()
    assert process.returncode == 1
    assert f"cannot listen on port {port} of {HOST} for readers of KV" in log
    assert "Traceback" not in log


@pytest.mark.parametrize(
    "flags", [{"kv_port": 7000, "port": 7000}, {"kv_port": 7000, "metrics_port": 7000},
              {"kv_port": 7000, "transport": "shared_memory"}],
)  # fmt: skip
def test_an_impossible_port_is_refused(flags: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=r"^kv_port: "):
        WorkerConfig(role="decode", worker_id="d", engine=EngineConfig(model="m"), **flags)
