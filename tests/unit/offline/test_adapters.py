"""Adapters that an LLM loads on their first use."""

import json
from pathlib import Path

import httpx
import pytest

from baton.offline.adapters import LoadedAdapters, LoRARequest, load
from baton.offline.requests import Requests

URL = "http://router"


class Server:
    """Adapters of a server, by name, of which only /good can be loaded."""

    def __init__(self, **adapters: str) -> None:
        self.adapters = adapters

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer as a router does."""
        body = json.loads(request.content)
        name = body["lora_name"]
        if request.url.path == "/v1/unload_lora_adapter":
            return httpx.Response(200 if self.adapters.pop(name, None) else 404, json={"error": {"message": "unknown"}})
        if name in self.adapters or body["lora_path"] != "/good":
            return httpx.Response(400, json={"error": {"message": "loaded" if name in self.adapters else "no files"}})
        self.adapters[name] = body["lora_path"]
        return httpx.Response(200)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """A server in place of the router."""
    made = Server()

    def client(_: Requests) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(made), base_url=URL)

    monkeypatch.setattr(Requests, "_client", client)
    return made


REQUESTS = Requests(URL, "key", lambda: None)


async def test_an_adapter_that_an_interrupted_call_left_is_replaced(server: Server) -> None:
    server.adapters["sql"] = "/earlier"
    await load(REQUESTS, "sql", "/good")
    assert server.adapters == {"sql": "/good"}


@pytest.mark.usefixtures("server")
async def test_an_adapter_that_cannot_be_loaded_is_invalid_input() -> None:
    with pytest.raises(ValueError, match="lora_request: the adapter sql of /bad cannot be loaded: 400: no files"):
        await load(REQUESTS, "sql", "/bad")


def test_only_adapters_that_are_not_loaded_are_missing() -> None:
    adapters = LoadedAdapters()
    one = LoRARequest("one", 1, "/one")
    assert adapters.missing([one, None, one]) == {"one": "/one"}
    adapters.add("one", "/one")
    assert adapters.missing([one]) == {}
    with pytest.raises(ValueError, match="one is the adapter in /one; give the one in /two another name"):
        adapters.missing([LoRARequest("one", 1, str(Path("/two")))])
