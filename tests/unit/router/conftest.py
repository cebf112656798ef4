"""The router's tests run on the router's event loop."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use libuv's loop: unlike asyncio's, it makes every watched descriptor non-blocking."""
    return {"uvloop": uvloop.new_event_loop}
