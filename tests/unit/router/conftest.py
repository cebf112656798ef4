"""The router is tested on the event loop that it runs on."""

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace

import pytest
import uvicorn.server
import uvloop

TICKS = 10  # where uvicorn has one, a tenth of a second


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """libuv's loop: unlike asyncio's own, it turns Nagle's delay of 40 ms off."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _quick_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server looks ten times a second whether it is to end, and then waits as long for its connections: of hundreds
    of servers that makes a minute.
    """

    async def sleep(delay_s: float) -> None:
        await asyncio.sleep(delay_s / TICKS)

    monkeypatch.setattr(uvicorn.server, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
