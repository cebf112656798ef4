"""The event loop for the transports' tests: the one that workers use."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use uvloop, which unlike asyncio's own loop makes every descriptor that it watches non-blocking."""
    return {"uvloop": uvloop.new_event_loop}
