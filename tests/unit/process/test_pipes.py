"""Pipes that an event loop reads: the descriptor is closed, and once."""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from baton.process.pipes import read_pipe


@pytest.mark.parametrize(
    ("new_loop", "is_closed_by_file"),
    [(asyncio.new_event_loop, True), (uvloop.new_event_loop, False)],
    ids=["asyncio", "uvloop"],
)
def test_the_descriptor_is_closed_once(
    new_loop: Callable[[], asyncio.AbstractEventLoop], is_closed_by_file: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, write = os.pipe()
    opened: list[Any] = []
    fdopen = os.fdopen
    monkeypatch.setattr(os, "fdopen", lambda *args, **options: opened.append(fdopen(*args, **options)) or opened[-1])

    async def use() -> bytes:
        reader, transport = await read_pipe(read)
        os.write(write, b"a line\n")
        line = await reader.readline()
        transport.close()
        return line

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(use()) == b"a line\n"
    [file] = opened
    assert file.closed
    assert file.raw.closefd is is_closed_by_file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(read)
    os.close(write)
