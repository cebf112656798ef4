"""A server for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helm.api_server.client import Client
from tests.helm.api_server.errors import Json
from tests.helm.api_server.server import ApiServer, serving


def accept(_: Json, __: Json | None) -> None:
    """Every object is one of its kind."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServer]:
    """Nothing in it but the namespace default, and nobody who cares for anything."""
    with serving(tmp_path, accept) as running:
        yield running


@pytest.fixture
def client(server: ApiServer) -> Iterator[Client]:
    """The administrator's."""
    with Client(server) as connected:
        yield connected
