"""The router is tested on the event loop that it runs on."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """libuv's loop: unlike asyncio's own, it makes every descriptor that it watches non-blocking."""
    return {"uvloop": uvloop.new_event_loop}
