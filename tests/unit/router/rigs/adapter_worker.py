"""A scripted worker with adapters: it loads directories, and their contents are those of one file."""

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import grpc

from baton.protos import worker_pb2
from tests.unit.router.rigs.scripted_worker import ScriptedWorker, adapter_list

WEIGHTS = "adapter_model.safetensors"


def write_adapter(directory: Path, content: str = "weights") -> Path:
    """Write an adapter of these contents."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / WEIGHTS).write_text(content)
    return directory


class AdapterWorker(ScriptedWorker):
    """A worker whose adapters are lost when it restarts."""

    def __init__(self, worker_id: str = "decode-0", role: int = worker_pb2.WORKER_ROLE_DECODE) -> None:
        super().__init__(worker_id, role)
        self.adapters: dict[str, str] = {}
        self.other_contents: dict[str, str] = {}  # by path, of a worker with other files
        self.refusal_of_loads: tuple[grpc.StatusCode, str] | None = None
        self.max_adapters = 1000
        self.loads: list[tuple[str, str]] = []
        self.unloads: list[str] = []
        self.may_load = asyncio.Event()  # cleared: loads hang
        self.may_load.set()

    async def start(self) -> str:
        """Start an incarnation without adapters."""
        self.adapters.clear()
        return await super().start()

    async def LoadAdapter(self, request: Any, context: Any) -> worker_pb2.LoadAdapterResponse:  # noqa: N802
        self.loads.append((request.name, request.path))
        await self.may_load.wait()
        if self.refusal_of_loads is not None:
            await context.abort(*self.refusal_of_loads)
        file = Path(request.path) / WEIGHTS
        if not file.exists():
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{request.path} has no {WEIGHTS}")
        content = self.other_contents.get(request.path, file.read_text())
        digest = hashlib.sha256(content.encode()).hexdigest()
        if self.adapters.get(request.name, digest) != digest:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, "it has other contents")
        if request.name not in self.adapters and len(self.adapters) >= self.max_adapters:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "max_cpu_loras is 1")
        self.adapters[request.name] = digest
        self.news()
        return worker_pb2.LoadAdapterResponse(adapter=adapter_list({request.name: digest}).adapters[0])

    async def UnloadAdapter(self, request: Any, context: Any) -> worker_pb2.UnloadAdapterResponse:  # noqa: N802
        self.unloads.append(request.name)
        if self.adapters.pop(request.name, None) is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such adapter")
        self.news()
        return worker_pb2.UnloadAdapterResponse()
