"""An upload that is cancelled while a thread uses its file."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from baton.router.files.disk import Disk
from baton.router.files.folder import FileFolder
from baton.router.files.quota import FolderLimits, Quota
from baton.router.files.record import TenantId
from baton.router.files.store import FileStore
from baton.router.files.upload import WRITE_BYTES, Upload
from tests.unit.router.rigs.running_router import until

HEAD = b'--x\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
TAIL = b'\r\n--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x--\r\n'


@pytest.mark.parametrize("method", ["claim", "shrink"])
async def test_a_cancelled_upload_closes_its_file_after_the_thread_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    waits, may_go_on, used = threading.Event(), threading.Event(), list[str]()
    work = getattr(Quota, method)

    def wait(quota: Quota, tenant: Path, fd: int, num_bytes: int) -> None:
        if num_bytes:
            waits.set()
            may_go_on.wait(20)
            used.append(os.readlink(f"/proc/self/fd/{fd}"))
        work(quota, tenant, fd, num_bytes)

    async def body() -> AsyncIterator[bytes]:
        yield HEAD
        yield b"x" * WRITE_BYTES
        yield TAIL

    limits = FolderLimits(file_bytes=1 << 22, tenant_bytes=1 << 22, max_bytes=1 << 22)
    files = FileStore(FileFolder(tmp_path, limits), Disk())
    monkeypatch.setattr(Quota, method, wait)
    uploading = asyncio.create_task(Upload(files, TenantId("00"), b"x").receive(body(), 0))
    await until(waits.is_set)
    uploading.cancel()
    await asyncio.sleep(0.1)
    assert not uploading.done()
    may_go_on.set()
    await asyncio.wait([uploading])
    assert uploading.cancelled()
    assert [Path(each).name for each in used] == ["content"]
    assert str(tmp_path) in used[0]
    files.disk.close()
