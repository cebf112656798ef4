"""The batches of a folder, run by a router's parts with scripted handlers of requests."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from baton.router.auth.api_key import ApiKey, digest_of
from baton.router.auth.client import Gate, KeyRing
from baton.router.batches.folder import BatchFolder, OwnedBatch
from baton.router.batches.input import InputReader
from baton.router.batches.journal import Journal, LineResult
from baton.router.batches.line_run import LineRunner
from baton.router.batches.metrics import BatchMetrics
from baton.router.batches.parts import BatchParts
from baton.router.batches.record import BatchRecord, new_batch_id
from baton.router.batches.run import BatchRun
from baton.router.batches.runner import BatchRunner
from baton.router.batches.slots import Slots
from baton.router.files.disk import Disk
from baton.router.files.folder import FileFolder
from baton.router.files.quota import FolderLimits
from baton.router.files.record import tenant_of
from baton.router.files.store import FileStore
from baton.router.http.body_route import BodyRoute
from baton.router.http.exchange import Exchange
from tests.unit.router.rigs.admission_rig import Rig, Workers

URL = "/v1/completions"
LIMITS = FolderLimits(file_bytes=1 << 20, tenant_bytes=1 << 20, max_bytes=1 << 20)
DEADLINE_S = 60.0

Serve = Callable[[Exchange], Awaitable[None]]


class Route(BodyRoute[Any]):
    """A handler without a model."""

    def __init__(self, serve: Serve) -> None:
        self.serve = serve  # type: ignore[method-assign]  # the whole handler


async def respond(exchange: Exchange) -> None:
    """Respond to a request."""
    await exchange.respond(200, b"{}")


def input_line(number: int) -> bytes:
    """Return a line of an input."""
    line = {"custom_id": f"line {number}", "method": "POST", "url": URL, "body": {"prompt": str(number)}}
    return json.dumps(line).encode() + b"\n"


class BatchRig:
    """A folder with a batch of a key, and the parts that run it."""

    def __init__(self, path: Path, serve: Serve = respond, limits: FolderLimits = LIMITS) -> None:
        self.path = path
        self.files = FileFolder(path, limits)
        self.batches = BatchFolder(self.files)
        self.disk = Disk()
        self.key = ApiKey(name="one", digest=digest_of(b"one"))
        self.tenant = tenant_of(self.key)
        metrics = BatchMetrics(CollectorRegistry(), "model")
        self.lines = LineRunner(self.gate(self.key), {URL: Route(serve)})
        slots = Slots(Rig(max_inflight=1000, workers=Workers(64)).admission, 16, metrics, lambda: True)
        self.parts = BatchParts(FileStore(self.files, self.disk), self.lines, self.inputs(), {"": slots}, metrics)
        self.runner = BatchRunner(self.batches, self.parts)

    def inputs(self, max_line_bytes: int = 10_000) -> InputReader:
        """Return a reader of inputs."""
        return InputReader(self.disk, max_line_bytes, lambda: 4096, max_completions=16)

    def gate(self, *keys: ApiKey) -> Gate:
        """Return the gate of these keys."""
        return Gate(KeyRing(keys, None, None))

    def create(self, num_lines: int = 3, expires_s: int | None = None) -> str:
        """Store a batch, and return its id."""
        content = b"".join(map(input_line, range(num_lines)))
        incoming = self.files.begin(self.tenant, len(content))
        incoming.write(content)
        file = incoming.commit("in", "batch", expires_s)
        now_s = int(time.time())
        record = BatchRecord(
            id=new_batch_id(), key_name="one", endpoint=URL, input_file_id=file.id, completion_window="1h",
            created_at=now_s, expires_at=now_s + 3600,
        )  # fmt: skip
        self.batches.create(self.tenant, record)
        return record.id

    def own(self, batch_id: str) -> OwnedBatch:
        """Become the owner of a batch that has none."""
        owned = self.batches.own(self.tenant, batch_id)
        assert owned is not None, "the lock is held"
        return owned

    async def run(self, batch_id: str) -> BatchRecord:
        """Run a batch to its end."""
        owned = self.own(batch_id)
        try:
            await asyncio.wait_for(BatchRun(owned, self.parts).run(), DEADLINE_S)
        finally:
            owned.release()
        return self.batches.find(self.tenant, batch_id).record

    def result(self, number: int) -> LineResult:
        """Return the result of a line of `create`."""
        return LineResult(f"line {number}", 200, "id", b"{}")

    async def tear(self, owned: OwnedBatch, numbers: Iterable[int]) -> None:
        """Leave the journal of a router that was killed: results, and a part of a line in each file."""
        journal = Journal(owned.folder, self.disk, owned.check_owner)
        for number in numbers:
            await journal.append(self.result(number))
        await journal.close()
        for name in ("output", "errors"):
            with (owned.folder / name / "content").open("ab") as file:
                file.write(b'{"id": "batch_req_torn", "custom_id": "line')

    def results(self, file_id: str | None) -> dict[str, Any]:
        """Return the lines of an output or error file by custom id, each of which must be unique."""
        assert file_id is not None
        with self.files.open(self.tenant, file_id) as file:
            lines = [json.loads(line) for line in file]
        found = {line["custom_id"]: line for line in lines}
        assert len(found) == len(lines)
        return found


@asynccontextmanager
async def batch_rig(path: Path, serve: Serve = respond, limits: FolderLimits = LIMITS) -> AsyncIterator[BatchRig]:
    """Yield a rig, and end its threads."""
    rig = BatchRig(path, serve, limits)
    try:
        yield rig
    finally:
        rig.disk.close()
